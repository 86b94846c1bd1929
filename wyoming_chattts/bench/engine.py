"""`bench engine`: our decoder and codec beside the stock package, interleaved in one run.

A step is timed without the codec, on both sides: embedding, transformer, heads, sampling. Rounds
of stock and ours take turns, so that a noisy machine is noisy to both; figures are medians.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ..config import Config
from ..engine import speaker
from ..engine.base import SAMPLE_RATE, STEPS_PER_SECOND, Prompt, Sampling
from ..engine.checkpoint import open_checkpoint
from ..engine.device import pick_device
from ..engine.fast import FastEngine
from .report import Report, median_ms, progress

SHORT_TEXT = "The living room light is on, and the door to the garden is closed."
_LONG = " ".join([SHORT_TEXT] * 6)
_STEPS = 16


class Ours:
    """Our engine at one precision."""

    def __init__(self, config: Config, folder: Path, precision: str, slots: int) -> None:
        settings = config.engine.model_copy(update={"precision": precision, "slots": slots})
        begin = time.perf_counter()
        self.engine = FastEngine(
            open_checkpoint(folder, verify=False), settings, config.sampling, config.stream
        )
        self.load_s = time.perf_counter() - begin
        self.precision = self.engine.info.precision

    @torch.inference_mode()
    def step_ms(self, slots: int, text: str) -> tuple[float, int]:
        """Median time of a step of that many slots, and the context's length."""
        engine, decode = self.engine, self.engine._decode
        engine.reset()
        sampling = Sampling(min_steps=64, max_steps=64)
        for slot in range(slots):
            engine.start(slot, Prompt(text, speaker.from_seed(slot)), sampling)
        context = max(state.prompt_tokens for state in engine._slots.values()) + 1
        times = []
        for i in range(_STEPS):
            begin = time.perf_counter()
            decode.step(slots, engine._bucket(context + i))
            _synchronize()
            times.append(time.perf_counter() - begin)
        engine.reset()
        return 1000 * statistics.median(times), context

    @torch.inference_mode()
    def prefill_ms(self, text: str) -> tuple[float, int]:
        """Median time of a prompt, and its tokens."""
        embedded = self.engine.embed_prompt(Prompt(text, speaker.from_seed(1)))

        def call() -> None:
            self.engine._gpt.prefill(embedded, 0)
            _synchronize()

        return median_ms(call, 5), embedded.shape[0]

    @torch.inference_mode()
    def codec_share(self) -> float:
        """Seconds of streaming codec for a second of audio."""
        from ..engine.codec import CodecStream

        hidden = torch.randn(240, self.engine._gpt.hidden, device=self.engine._device)

        def call() -> None:
            stream = CodecStream(self.engine._codec, self.engine._lookahead)
            for known in range(8, 241, 8):
                stream.push(hidden[:known], final=known == 240)

        return median_ms(call, 3) / 1000 * SAMPLE_RATE / (240 * 512)


class Stock:
    """The stock package."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from ..engine.reference import load_chat

        begin = time.perf_counter()
        self.chat: Any = load_chat(open_checkpoint(folder, verify=False), device)
        self.load_s = time.perf_counter() - begin

    def _seconds(self, text: str, steps: int) -> float:
        params = self.chat.InferCodeParams(
            spk_emb=speaker.to_string(speaker.from_seed(1)),
            max_new_token=steps,
            min_new_token=steps,
            show_tqdm=False,
        )
        begin = time.perf_counter()
        list(self.chat._infer_code([text], False, self.chat.device, True, params))
        _synchronize()
        return time.perf_counter() - begin

    def step_ms(self, text: str) -> float:
        """Time of a step: a longer run less a shorter one."""
        few, many = 4, 4 + _STEPS
        return 1000 * (self._seconds(text, many) - self._seconds(text, few)) / _STEPS

    def codec_share(self) -> float:
        """Seconds of codec for a second of audio, decoded whole."""
        hidden = torch.randn(240, 768, device=self.chat.device)
        ms = median_ms(lambda: self.chat._decode_to_wavs([hidden.clone()], True), 3)
        return ms / 1000 * SAMPLE_RATE / (240 * 512)


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the tables."""
    device = pick_device(config.engine.device)
    precision = config.engine.precision
    slots = [1, 4] if device.type == "cpu" else [1, 4, 16]
    ours = Ours(config, folder, precision, max(slots))
    stock = None if options.no_stock else Stock(folder, device)
    rounds = 3 if options.quick else 7
    bandwidth = memory_bandwidth(device)
    weights = weight_bytes(folder, ours.precision)
    report.say(
        f"Memory bandwidth (measured): {bandwidth / 1e9:.1f} GB/s; a step reads "
        f"{weights / 1e6:.0f} MB in {ours.precision}, {1000 * weights / bandwidth:.2f} ms at best."
    )
    report.say()
    cases = [(text, n) for text in (SHORT_TEXT, _LONG) for n in slots]
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    contexts: dict[str, int] = {}
    stocks: dict[str, list[float]] = {SHORT_TEXT: [], _LONG: []}
    for _ in progress(range(rounds), "rounds"):
        for text in (SHORT_TEXT, _LONG):
            if stock is not None:
                stocks[text].append(stock.step_ms(text))
            for n in slots:
                ms, contexts[text] = ours.step_ms(n, text)
                taken[text, n].append(ms)
    rows: list[list[Any]] = []
    for text in (SHORT_TEXT, _LONG):
        base = statistics.median(stocks[text]) if stock is not None else None
        if base is not None:
            rate = 1000 / base
            rows.append(
                ["stock fp32", 1, contexts[text], base, rate, STEPS_PER_SECOND / rate, 1.0, None]
            )
        for n in slots:
            ms = statistics.median(taken[text, n])
            rate = 1000 * n / ms
            ratio = base * n / ms if base is not None else None
            share = weights / bandwidth / (ms / 1000)
            name = f"ours {ours.precision}"
            rows.append([name, n, contexts[text], ms, rate, STEPS_PER_SECOND / rate, ratio, share])
    report.table(
        "steps",
        ["engine", "slots", "context", "ms/step", "steps/s", "RTF", "× stock", "of bandwidth"],
        rows,
    )
    prefill, tokens = ours.prefill_ms(_LONG)
    peak = peak_memory_mb(folder, config, ours.precision)
    report.table(
        "rest",
        ["engine", "load s", f"prefill {tokens} tokens ms", "codec s per s", "peak memory MB"],
        [
            ["stock fp32", stock.load_s, None, stock.codec_share(), None]
            if stock
            else ["stock"] + [None] * 4,
            [f"ours {ours.precision}", ours.load_s, prefill, ours.codec_share(), peak],
        ],
    )

    def draw(axes: Any) -> None:
        labels = [f"{row[0]}\n{row[1]} slots, context {row[2]}" for row in rows]
        axes.barh(labels, [row[4] for row in rows])
        axes.axvline(STEPS_PER_SECOND, color="black", linestyle="--", label="real time")
        axes.set_xlabel("decode steps a second")
        axes.legend()
        axes.invert_yaxis()

    report.plot(draw)


def memory_bandwidth(device: torch.device) -> float:
    """Bytes a second of reading, from a sum over half a gigabyte."""
    data = torch.ones(128 * 1024 * 1024, device=device)

    def call() -> None:
        data.sum()
        _synchronize()

    call()
    return data.numel() * 4 / (median_ms(call, 9) / 1000)


def weight_bytes(folder: Path, precision: str) -> int:
    """Bytes of decoder and head weights that one step reads."""
    d = open_checkpoint(folder, verify=False).dims
    layers = d.layers * (4 * d.hidden * d.hidden + 3 * d.hidden * d.mlp)
    size = {"fp32": 4, "int8": 1}.get(precision, 2)
    return layers * size + 4 * 626 * d.hidden * 4


def peak_memory_mb(folder: Path, config: Config, precision: str) -> float:
    """Peak resident memory of a process that loads the engine and speaks a sentence."""
    code = f"""
from pathlib import Path
from wyoming_chattts.bench.engine import Ours
from wyoming_chattts.bench.report import resident_mb
from wyoming_chattts.config import load
ours = Ours(load(environ={{}}), Path({str(folder)!r}), {precision!r}, {config.engine.slots or 4})
ours.engine.warm_up()
print(resident_mb("VmHWM"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
