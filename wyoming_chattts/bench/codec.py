"""`bench codec`: what a shorter look-ahead costs in accuracy, and what streaming costs in time."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..engine import layout
from ..engine.base import SAMPLE_RATE, STEPS_PER_SECOND
from ..engine.checkpoint import open_checkpoint
from ..engine.codec import CHUNK_STEPS, FULL_LOOKAHEAD, Codec, CodecStream
from ..engine.device import pick_device
from ..engine.weights import read_tensors
from .report import Report, median_ms, progress

_STEPS = 240
_LOOKAHEADS = (1, 2, 4, 8, 12, 16, 24, 32, FULL_LOOKAHEAD)


@torch.inference_mode()
def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table."""
    device = pick_device(config.engine.device)
    dims = open_checkpoint(folder, verify=False).dims

    def build(dtype: torch.dtype = torch.float32) -> Codec:
        decoder, vocos = (read_tensors(folder / name) for name in (layout.DECODER, layout.VOCOS))
        return Codec(decoder, vocos, dims, device, dtype)

    codec = build()
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn((_STEPS, 768), generator=generator).to(device)
    whole = codec.decode(hidden).cpu().numpy()
    offline = median_ms(lambda: codec.decode(hidden).cpu(), 3)
    seconds = whole.size / SAMPLE_RATE
    rows: list[list[Any]] = []
    for lookahead in progress(_LOOKAHEADS, "look-ahead"):

        def stream(steps: int = lookahead) -> Any:
            made = []
            codec_stream = CodecStream(codec, steps)
            for known in range(8, _STEPS + 1, 8):
                chunk = codec_stream.push(hidden[:known], final=known == _STEPS)
                if chunk is not None:
                    made.append(chunk[0])
            return np.concatenate(made)

        error = stream() - whole
        first = CHUNK_STEPS[0] + lookahead
        rows.append(
            [
                lookahead,
                first,
                1000 * first / STEPS_PER_SECOND,
                _snr_db(whole, error),
                float(np.abs(error).max()),
                median_ms(stream, 3) / 1000 / seconds,
            ]
        )
    report.say(f"Decoded whole: {offline / 1000 / seconds:.3f} s for a second of audio.")
    report.say()
    report.table(
        "lookahead",
        [
            "look-ahead steps",
            "steps to first audio",
            "ms of speech",
            "SNR dB",
            "largest error",
            "codec s per s",
        ],
        rows,
    )

    halves: list[list[Any]] = []
    for dtype in (torch.float16, torch.bfloat16):
        error = build(dtype).decode(hidden).float().cpu().numpy() - whole
        name = str(dtype).removeprefix("torch.")
        halves.append([name, _snr_db(whole, error), float(np.abs(error).max())])
    report.table("precision", ["feed-forward layers in", "SNR dB", "largest error"], halves)

    def draw(axes: Any) -> None:
        axes.plot([row[0] for row in rows], [row[3] for row in rows], marker="o")
        axes.set_xlabel("look-ahead, steps")
        axes.set_ylabel("SNR against decoding whole, dB")

    report.plot(draw)


def _snr_db(whole: Any, error: Any) -> float:
    return 10 * math.log10(float((whole**2).mean()) / max(float((error**2).mean()), 1e-30))
