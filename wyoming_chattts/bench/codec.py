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
    codec = Codec(
        read_tensors(folder / layout.DECODER),
        read_tensors(folder / layout.VOCOS),
        open_checkpoint(folder, verify=False).dims,
        device,
    )
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
        ratio = float(np.sqrt((whole**2).mean() / max((error**2).mean(), 1e-30)))
        first = CHUNK_STEPS[0] + lookahead
        rows.append(
            [
                lookahead,
                first,
                1000 * first / STEPS_PER_SECOND,
                20 * math.log10(ratio),
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

    def draw(axes: Any) -> None:
        axes.plot([row[0] for row in rows], [row[3] for row in rows], marker="o")
        axes.set_xlabel("look-ahead, steps")
        axes.set_ylabel("SNR against decoding whole, dB")

    report.plot(draw)
