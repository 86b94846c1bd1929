"""Last stages: ChatTTS's character set, and its homophone table.

ChatTTS reads Chinese characters, Latin letters and `，。、,.` only (`norm.py` of its package);
everything else is mapped to one of these or dropped. The homophone table replaces characters that
ChatTTS misreads by others of the same sound.
"""

import json
import re
from functools import cache
from pathlib import Path

from opencc import OpenCC

from ..engine.layout import CONTROL_TOKENS as ALL_TOKENS

CONTROL_TOKENS = frozenset({"laugh", "uv_break", "lbreak"})
"""Paralinguistic tokens, the only ones that a text may contain."""

_TOKEN = re.compile("(" + "|".join(re.escape(token) for token in ALL_TOKENS) + ")", re.IGNORECASE)
_HANZI = "一-鿿"
_PAUSES = str.maketrans(
    {
        **dict.fromkeys("：；（）【】『』「」《》〈〉－—–―~～·•|", "，"),
        **dict.fromkeys("！？｡", "。"),
        **dict.fromkeys(":;()[]{}<>", ","),
        **dict.fromkeys("!?", "."),
        "…": "。",
        "\n": "，",
    }
)
_ASCII_IN_CHINESE = re.compile(rf"(?<=[{_HANZI}])\s*([,.])\s*|\s*([,.])\s*(?=[{_HANZI}])")
_DROPPED = re.compile(rf"[^{_HANZI}A-Za-z，。、,. ]")
_REPEATED = re.compile(r"([，。、,.])[，。、,.\s]*(?=[，。、,.])")
_SPACES = re.compile(r"\s+")
_SPACE_AT_MARK = re.compile(rf"\s+(?=[，。、,.])|(?<=[，。、])\s+|(?<=[{_HANZI}])\s+(?=[{_HANZI}])")
_LEADING = re.compile(r"^[，。、,.\s]+")


def to_charset(text: str, keep: frozenset[str] = CONTROL_TOKENS) -> str:
    """A spoken form in ChatTTS's character set, with the control tokens named in `keep`.

    Empty if nothing is left to say.
    """
    parts = _TOKEN.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = part.lower() if part[1:-1].lower() in keep else ""
        else:
            parts[i] = _characters(part)
    return _tidy("".join(parts))


def _characters(text: str) -> str:
    if not text.isascii():
        text = simplified(text)
    text = text.translate(_PAUSES)
    text = _ASCII_IN_CHINESE.sub(lambda m: "，" if "," in m.group() else "。", text)
    return _DROPPED.sub("", text.replace("’", "'"))


def _tidy(text: str) -> str:
    text = _SPACES.sub(" ", text)
    text = _SPACE_AT_MARK.sub("", text)
    text = _REPEATED.sub("", text)
    text = _LEADING.sub("", text).strip()
    return text if re.search(rf"[{_HANZI}A-Za-z]", _TOKEN.sub("", text)) else ""


def simplified(text: str) -> str:
    """Traditional characters to simplified ones, phrase by phrase."""
    return str(_converter().convert(text))


@cache
def _converter() -> OpenCC:
    return OpenCC("t2s")


class Homophones:
    """The ChatTTS package's table of characters that it misreads."""

    def __init__(self, file: Path) -> None:
        table = json.loads(file.read_text(encoding="utf-8"))
        self._table = str.maketrans(table)

    def __call__(self, text: str) -> str:
        """The text with each listed character replaced by its homophone."""
        return text.translate(self._table)
