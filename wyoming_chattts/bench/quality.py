"""`bench quality`: what a precision changes, against fp32 on the same noise.

Free running: the step at which the codes first differ. Teacher forcing (both are fed fp32's codes):
Kullback-Leibler divergence of the logits, share of equal draws, distance of the mel frames.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..config import Config
from ..engine import speaker
from ..engine.base import Prompt, Sampling
from ..engine.checkpoint import open_checkpoint
from ..engine.decode import NOISE_BLOCK
from ..engine.fast import FastEngine
from ..engine.layout import AUDIO_VOCAB, CODEBOOKS
from ..engine.sampling import PENALTY_WINDOW, candidates, draw
from .report import Report, progress

_PROMPTS = (
    ("The living room light is on, and the door is closed.", 2),
    ("客厅的灯已经打开，大门也关好了。", 42),
    ("Set 客厅 to twenty two degrees, please.", 1111),
)
_STEPS = 96


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one precision; `kl` in nats, `mel_db` the mel frames' SNR."""

    precision: str
    first_difference: int
    kl: float
    agreement: float
    mel_db: float


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table."""
    on_gpu = torch.cuda.is_available() and config.engine.device != "cpu"
    precisions = ["fp16", "bf16"] if on_gpu else ["int8", "bf16", "fp16"]
    steps = 48 if options.quick else _STEPS
    results = compare(config, folder, precisions, steps)
    report.table(
        "precisions",
        ["precision", "first difference, step", "KL nats", "equal draws", "mel SNR dB"],
        [[q.precision, q.first_difference, q.kl, q.agreement, q.mel_db] for q in results],
    )

    def draw_bars(axes: Any) -> None:
        axes.bar([q.precision for q in results], [q.mel_db for q in results])
        axes.set_ylabel("mel SNR against fp32, dB")

    report.plot(draw_bars)


def compare(config: Config, folder: Path, precisions: list[str], steps: int) -> list[Quality]:
    """Figures of each precision, the mean over some prompts (the least, for the difference)."""
    reference = _engine(config, folder, "fp32")
    forced = [_reference_run(reference, prompt, steps) for prompt in _prompts()]
    results = []
    for precision in progress(precisions, "precisions"):
        engine = _engine(config, folder, precision)
        kls, equals, mels, firsts = [], [], [], []
        for prompt, run in zip(_prompts(), forced, strict=True):
            codes = _codes(engine, prompt, steps)
            differing = (codes != run.codes[: len(codes)]).any(1).nonzero()
            firsts.append(int(differing[0]) if len(differing) else steps)
            hidden = _forced(engine, prompt, run.codes)
            logits = _logits(engine, hidden)
            kls.append(_kl(run.logits, logits))
            equals.append(float((_draws(engine, logits, run) == run.draws).float().mean()))
            mels.append(_mel_snr(reference, run.hidden, hidden))
        results.append(
            Quality(engine.info.precision, min(firsts), _mean(kls), _mean(equals), _mean(mels))
        )
    return results


@dataclass(frozen=True, slots=True)
class _Run:
    """fp32's run of one prompt: codes `[steps, 4]`, hidden `[steps, 768]`, logits and noise
    `[steps, 4, 626]`, what is drawn from them `[steps, 4]`."""

    codes: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor
    noise: torch.Tensor
    draws: torch.Tensor


def _prompts() -> list[Prompt]:
    return [Prompt(text, speaker.from_seed(seed)) for text, seed in _PROMPTS]


def _engine(config: Config, folder: Path, precision: str) -> FastEngine:
    settings = config.engine.model_copy(update={"precision": precision, "slots": 1})
    checkpoint = open_checkpoint(folder, verify=False)
    return FastEngine(checkpoint, settings, config.sampling, config.stream)


@torch.inference_mode()
def _codes(engine: FastEngine, prompt: Prompt, steps: int) -> torch.Tensor:
    """What the engine draws by itself with seed 1."""
    engine.reset()
    engine.start(0, prompt, Sampling(seed=1, min_steps=steps, max_steps=steps))
    made = 0
    while engine._slots:
        for output in engine.burst(8):
            made = output.steps
    return engine._decode.codes[0, : min(made, steps)].cpu().clone()


@torch.inference_mode()
def _reference_run(engine: FastEngine, prompt: Prompt, steps: int) -> _Run:
    codes = _codes(engine, prompt, steps)
    hidden = _forced(engine, prompt, codes)
    logits = _logits(engine, hidden)
    generator = torch.Generator().manual_seed(1)
    blocks = -(-len(codes) // NOISE_BLOCK)
    shape = (NOISE_BLOCK, CODEBOOKS, AUDIO_VOCAB)
    noise = torch.cat([torch.empty(shape).exponential_(generator=generator) for _ in range(blocks)])
    run = _Run(codes, hidden, logits, noise[: len(codes)], torch.empty(0))
    return _Run(codes, hidden, logits, run.noise, _draws(engine, logits, run))


@torch.inference_mode()
def _forced(engine: FastEngine, prompt: Prompt, codes: torch.Tensor) -> torch.Tensor:
    """Hidden states `[steps, 768]` of each step, fed the given codes."""
    gpt, decode = engine._gpt, engine._decode
    embedded = engine.embed_prompt(prompt)
    found = [gpt.prefill(embedded, 0)[-1]]
    for i, code in enumerate(codes[:-1]):
        x = F.embedding(code.to(engine._device) + decode._offsets, decode._embed).sum(0)[None]
        position = torch.tensor([embedded.shape[0] + i], device=engine._device)
        found.append(gpt.step(x, position, engine._bucket(embedded.shape[0] + i + 1))[0].clone())
    return torch.stack(found).float()


@torch.inference_mode()
def _logits(engine: FastEngine, hidden: torch.Tensor) -> torch.Tensor:
    return F.linear(hidden, engine._decode._heads).view(-1, CODEBOOKS, AUDIO_VOCAB).cpu()


def _kl(reference: torch.Tensor, other: torch.Tensor) -> float:
    wanted, got = reference.log_softmax(-1), other.log_softmax(-1)
    return float(F.kl_div(got, wanted, log_target=True, reduction="none").sum(-1).mean())


def _draws(engine: FastEngine, logits: torch.Tensor, run: _Run) -> torch.Tensor:
    """Draws `[steps, 4]` with the run's noise and history."""
    one = torch.ones((1, 1))
    drawn = []
    for i, row in enumerate(logits):
        history = run.codes[max(0, i - PENALTY_WINDOW) : i]
        counts = F.one_hot(history, AUDIO_VOCAB).sum(0) if i else torch.zeros_like(row)
        scores, ids = candidates(
            row, counts, one * 0.3, one * 1.05, one * 0.7, (one * 20).long(), 20
        )
        drawn.append(draw(scores, ids, run.noise[i]))
    return torch.stack(drawn)


@torch.inference_mode()
def _mel_snr(engine: FastEngine, reference: torch.Tensor, other: torch.Tensor) -> float:
    wanted, got = engine._codec.mel(reference), engine._codec.mel(other)
    error = (got - wanted).square().mean().clamp(min=1e-20)
    return float(10 * torch.log10(wanted.square().mean() / error))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
