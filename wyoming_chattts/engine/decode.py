"""Decode state of all slots, and one step of it: embedding → GPT → heads → sampling → buffers.

Everything a step reads or writes lies in static tensors, so that it can be captured as a CUDA
graph; nothing in it waits for the device. Slots `0..rows` take part in a step; those among them
that are done are computed along and change nothing that is read.
"""

import torch
import torch.nn.functional as F

from .base import Sampling
from .fused import Kernels
from .gpt import Transformer
from .layout import AUDIO_VOCAB, CODEBOOKS, END_CODE
from .sampling import NO_CODE, PENALTY_WINDOW
from .weights import Tensors, weight_normed

NOISE_BLOCK = 32
"""Steps of noise that are drawn at once. Fixed, so that bursts of any size draw the same."""


class Decode:
    """Codes and hidden states of all slots.

    `hidden`: `[slots, max_steps, hidden]` fp32, row `i` of a slot predicts its code `i`.
    `codes`: `[slots, max_steps, 4]`. `steps`: `[slots]`, codes drawn so far without the end code.
    `broken`: `[slots]`, whether a hidden state was not finite: what follows it is noise.
    """

    def __init__(
        self,
        gpt: Transformer,
        embed: Tensors,
        *,
        max_steps: int,
        max_k: int,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        self.gpt = gpt
        self.max_steps = max_steps
        self.max_k = max_k
        self.device = device
        self._kernels = kernels or Kernels()
        self._embed = torch.cat([embed[f"emb_code.{i}.weight"] for i in range(CODEBOOKS)]).to(
            device
        )
        self._heads = torch.cat(
            [weight_normed(embed, f"head_code.{i}") for i in range(CODEBOOKS)]
        ).to(device)
        self._offsets = torch.arange(CODEBOOKS, device=device) * AUDIO_VOCAB
        slots = gpt.slots

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros((slots, *shape), dtype=dtype, device=device)

        self.hidden = zeros(max_steps, gpt.hidden)
        self.codes = zeros(max_steps, CODEBOOKS, dtype=torch.int64)
        self.noise = zeros(2 * NOISE_BLOCK, CODEBOOKS, AUDIO_VOCAB) + 1.0
        self.steps = zeros(dtype=torch.int64)
        self.positions = zeros(dtype=torch.int64)
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.broken = torch.zeros(slots, dtype=torch.bool, device=device)
        self._last = zeros(CODEBOOKS, dtype=torch.int64)
        self._window = zeros(CODEBOOKS, PENALTY_WINDOW, dtype=torch.int64) + NO_CODE
        self._min_steps = zeros(dtype=torch.int64)
        self._max_steps = zeros(dtype=torch.int64)
        self._temperature = zeros(1, 1) + 1.0
        self._penalty = zeros(1, 1) + 1.0
        self._top_p = zeros(1, 1) + 1.0
        self._top_k = zeros(1, 1, dtype=torch.int64) + max_k
        self._rows = torch.arange(slots, device=device)

    def begin(self, slot: int, prompt: torch.Tensor, sampling: Sampling) -> int:
        """Prefills a slot with prompt embeddings `[tokens, hidden]` and draws its first code.

        `noise` must hold the segment's first block. Returns the steps at which it will be cut.
        """
        tokens = prompt.shape[0]
        self.steps[slot] = 0
        self.positions[slot] = tokens
        self.done[slot] = self.broken[slot] = False
        self._window[slot] = NO_CODE
        self._min_steps[slot] = sampling.min_steps
        limit = min(sampling.max_steps, self.max_steps, self.gpt.context - tokens)
        self._max_steps[slot] = limit
        self._temperature[slot] = sampling.temperature
        self._penalty[slot] = sampling.repetition_penalty
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        hidden = self.gpt.prefill(prompt, slot)[-1:]
        self._sample(slice(slot, slot + 1), hidden)
        return limit

    def step(self, rows: int, context: int) -> None:
        """One decode step of slots `0..rows`; attention looks at the first `context` positions."""
        part = slice(0, rows)
        x = self.embed(self._last[part])
        hidden = self.gpt.step(x, self.positions[part], context)
        self.positions[part] += (~self.done[part]).long()
        self._sample(part, hidden)

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Embeddings `[rows, hidden]` of codes `[rows, 4]`."""
        return F.embedding(codes + self._offsets, self._embed).sum(1)

    def _sample(self, part: slice, hidden: torch.Tensor) -> None:
        """Draws a code for each row from hidden states `[rows, hidden]`, and books it."""
        rows, steps, done = self._rows[part], self.steps[part], self.done[part]
        at = steps.clamp(max=self.max_steps - 1)
        codes = self._kernels.pick(
            F.linear(hidden, self._heads),
            self._window[part],
            steps < self._min_steps[part],
            self.noise[rows, steps % (2 * NOISE_BLOCK)],
            self._temperature[part],
            self._penalty[part],
            self._top_p[part],
            self._top_k[part],
            self.max_k,
        )
        ended = (codes == END_CODE).any(1)
        self.broken[part] |= ~(done | hidden.isfinite().all(1))
        # a done slot's buffers must not change: what lies there may still be read
        self.hidden[rows, at] = torch.where(done[:, None], self.hidden[rows, at], hidden)
        self.codes[rows, at] = torch.where(done[:, None], self.codes[rows, at], codes)
        self._last[part] = codes
        self._window[part] = torch.cat([self._window[part][..., 1:], codes[..., None]], dim=-1)
        self.steps[part] = steps + (~(done | ended)).long()
        self.done[part] = done | ended | (self.steps[part] >= self._max_steps[part])

    def snapshot(self) -> list[torch.Tensor]:
        """Copies of what a step changes and a later one reads, but for the KV cache: a step done
        twice writes the same there."""
        return [tensor.clone() for tensor in self._state()]

    def restore(self, snapshot: list[torch.Tensor]) -> None:
        """Puts a snapshot back."""
        for tensor, kept in zip(self._state(), snapshot, strict=True):
            tensor.copy_(kept)

    def _state(self) -> list[torch.Tensor]:
        return [
            self.hidden,
            self.codes,
            self.steps,
            self.positions,
            self.done,
            self.broken,
            self._last,
            self._window,
        ]

    def park(self, slot: int) -> None:
        """Lets steps pass over a slot whose cache another pass is filling: they may only write
        to the last position, which that pass leaves alone."""
        self.done[slot] = True
        self.positions[slot] = self.gpt.context - 1

    def release(self, slot: int) -> None:
        """Takes a slot out of the steps to come."""
        self.done[slot] = True
