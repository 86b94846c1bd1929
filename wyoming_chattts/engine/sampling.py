"""Drawing codes: ChatTTS's logits processors as a handful of tensor operations.

Per codebook: temperature, repetition penalty raised to the count over the last 16 steps, top-p,
then top-k with at least three kept, softmax, one draw. The draw is an exponential race
(`argmax(p / e)` with `e ~ Exp(1)`, in the log domain), which is a multinomial draw without a host
sync; its noise comes from the segment's own seed. After `model/processors.py` of ChatTTS.
"""

import torch

from .layout import AUDIO_VOCAB, CODEBOOKS, END_CODE

NO_CODE = AUDIO_VOCAB
"""Fills the penalty window before the first steps; counted in a column that is cut off."""
PENALTY_WINDOW = 16
MIN_KEPT = 3


def candidates(
    logits: torch.Tensor,
    counts: torch.Tensor,
    temperature: torch.Tensor,
    penalty: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    max_k: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and ids of the tokens that may be drawn, best first; both `[..., max_k]`.

    `logits` and `counts` are `[..., vocab]`; the four parameters broadcast against `[..., 1]`.
    `counts` says how often each token came within the window. Tokens that are filtered out have
    the score -inf; the softmax of the others is what is drawn from.
    """
    scores = logits / temperature
    alpha = penalty.pow(counts)
    scores = torch.where(scores < 0, scores * alpha, scores / alpha)
    best, ids = scores.topk(min(max_k, logits.shape[-1]), dim=-1)
    probabilities = (best - scores.logsumexp(dim=-1, keepdim=True)).exp()
    rank = torch.arange(best.shape[-1], device=logits.device)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = ((before < top_p) | (rank < MIN_KEPT)) & (rank < top_k.clamp(min=MIN_KEPT))
    return best.masked_fill(~kept, -torch.inf), ids


def draw(scores: torch.Tensor, ids: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """One id per row: `[...]` from scores and ids `[..., k]` and noise `[..., vocab]`."""
    race = scores - noise.gather(-1, ids).log()
    return ids.gather(-1, race.argmax(dim=-1, keepdim=True)).squeeze(-1)


def pick(
    logits: torch.Tensor,
    window: torch.Tensor,
    early: torch.Tensor,
    noise: torch.Tensor,
    temperature: torch.Tensor,
    penalty: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    max_k: int,
) -> torch.Tensor:
    """Codes `[rows, 4]` from logits `[rows, 4*vocab]` and the last codes `[rows, 4, 16]`.

    Rows that are `early` `[rows]` do not draw the end code. `noise` is `[rows, 4, vocab]`.
    """
    rows = logits.shape[0]
    ones = torch.ones(window.shape, device=logits.device)
    counts = torch.zeros((rows, CODEBOOKS, AUDIO_VOCAB + 1), device=logits.device)
    counts = counts.scatter_add(2, window, ones)[..., :AUDIO_VOCAB]
    scores, ids = candidates(
        logits.view(rows, CODEBOOKS, AUDIO_VOCAB), counts, temperature, penalty, top_p, top_k, max_k
    )
    scores = scores.masked_fill(early[:, None, None] & (ids == END_CODE), -torch.inf)
    return draw(scores, ids, noise)
