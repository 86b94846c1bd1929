"""ChatTTS's BERT-style tokenizer, on the `tokenizers` library alone."""

from pathlib import Path

from tokenizers import Tokenizer as _Tokenizer

from ..errors import CheckpointError


class Tokenizer:
    """Text with control tokens to ids and back."""

    def __init__(self, file: Path) -> None:
        """Raises `CheckpointError` if the file is not a tokenizer with ChatTTS's control tokens."""
        try:
            self._tokenizer = _Tokenizer.from_file(str(file))
        # the library raises plain Exception for whatever is wrong with the file
        except Exception as error:  # noqa: BLE001
            raise CheckpointError(f"{file}: {error}") from None
        self.speaker_id = self._id("[spk_emb]", file)
        self.first_style_id = self._id("[break_0]", file)
        """Ids from here on are style tokens, which the refine pass's result leaves out."""
        self.text_end_id = self._id("[Ebreak]", file)

    def _id(self, token: str, file: Path) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise CheckpointError(f"{file}: control token {token} is missing")
        return int(found)

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt; no start or end token is added."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ids, control tokens included."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))
