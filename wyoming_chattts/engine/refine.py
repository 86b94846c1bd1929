"""The optional refine pass: the text head puts `[uv_break]`, `[laugh]` and such into a text.

Runs in the segment's own slot, token by token, some tokens a burst, so that neighbours go on.
Parameters are those of the ChatTTS package's `RefineTextParams`.
"""

import torch
import torch.nn.functional as F

from .base import Prompt
from .gpt import Transformer
from .prompt import refine_prompt
from .sampling import candidates, draw
from .tokenizer import Tokenizer

MAX_TOKENS = 384
_TEMPERATURE = 0.7
_TOP_P = 0.7
_TOP_K = 20


class Refine:
    """One text's refine pass in one slot."""

    def __init__(
        self,
        gpt: Transformer,
        tokenizer: Tokenizer,
        embed: torch.Tensor,
        head: torch.Tensor,
        slot: int,
        generator: torch.Generator,
    ) -> None:
        """`embed` and `head` are `[text_vocab, hidden]` float32."""
        self._gpt = gpt
        self._tokenizer = tokenizer
        self._embed = embed
        self._head = head
        self._slot = slot
        self._generator = generator
        self._hidden = torch.zeros(0)
        self._ids: list[int] = []
        self._position = 0
        self._limit = MAX_TOKENS

    def begin(self, prompt: Prompt, *, paced: bool) -> None:
        """Prefills the slot. `paced` keeps random weights to as many tokens as the text has."""
        ids = self._tokenizer.encode(refine_prompt(prompt))[: self._gpt.context // 2]
        embedded = F.embedding(torch.tensor(ids, device=self._gpt.device), self._embed)
        self._hidden = self._gpt.prefill(embedded, self._slot)[-1:]
        self._position = len(ids)
        room = self._gpt.context - 1 - self._position
        self._limit = min(len(ids) if paced else MAX_TOKENS, room)

    def burst(self, n_steps: int) -> str | None:
        """Draws up to `n_steps` tokens; returns the refined text once it is whole."""
        for _ in range(n_steps):
            token = self._draw()
            if token == self._tokenizer.text_end_id or len(self._ids) >= self._limit:
                kept = [i for i in self._ids if i < self._tokenizer.first_style_id]
                return self._tokenizer.decode(kept)
            self._ids.append(token)
            embedded = self._embed[token][None]
            self._hidden = self._step(embedded)
            self._position += 1
        return None

    def _draw(self) -> int:
        logits = F.linear(self._hidden, self._head)
        one = torch.ones((1, 1), device=logits.device)
        scores, ids = candidates(
            logits,
            torch.zeros_like(logits),
            one * _TEMPERATURE,
            one,
            one * _TOP_P,
            (one * _TOP_K).long(),
            _TOP_K,
        )
        noise = torch.empty_like(logits).exponential_(generator=self._generator)
        return int(draw(scores, ids, noise))

    def _step(self, embedded: torch.Tensor) -> torch.Tensor:
        """Hidden state `[1, hidden]` of one more token."""
        rows = self._slot + 1
        x = embedded.expand(rows, -1).contiguous()
        positions = torch.full((rows,), self._gpt.context - 1, device=self._gpt.device)
        positions[self._slot] = self._position
        return self._gpt.step(x, positions, self._gpt.context)[self._slot :]
