"""`bench seed`: a household's hundred texts, and what each part of the server is worth.

100 texts of 10 to 50 characters, of which 65 are repeats, four callers at a time. The baseline is
the stock package in fp32, one text after another, without a cache; then this server as it is, and
with its cache, its precision or its slots switched off. Times are those of a client from its
request to the last of its audio (the baseline's: of the call).
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from ..config import Config
from ..engine import speaker
from ..engine.base import Sampling, expected_steps
from ..engine.checkpoint import open_checkpoint
from ..engine.device import pick_device
from .report import Report, percentile, progress, resident_mb
from .server import Outcome, Server, request, sentence, start_server

_TEXTS, _REPEATS = 100, 65
_CALLERS = 4


def texts(count: int) -> list[str]:
    """Texts of 10 to 50 characters, 65 % of them said before."""
    chance = random.Random(7)
    fresh: list[str] = []
    while len(fresh) < count - count * _REPEATS // _TEXTS:
        text = sentence(chance)[: chance.randint(10, 50)].strip()
        if text not in fresh:
            fresh.append(text)
    said = fresh + chance.choices(fresh, k=count - len(fresh))
    chance.shuffle(said)
    return said


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table."""
    count = 20 if options.quick else _TEXTS
    said = texts(count)
    variants: list[tuple[str, list[str]]] = [
        ("ours", []),
        ("ours, no cache", ["cache.enabled=false"]),
        ("ours, fp32", ["engine.precision=fp32"]),
        ("ours, one slot", ["engine.slots=1"]),
    ]
    rows: list[list[Any]] = []
    if not options.no_stock:
        rows.append(_stock(config, folder, said))
    for name, settings in progress(variants, "variants"):
        with tempfile.TemporaryDirectory() as data:
            server = start_server(folder, Path(data), "queue.max_pending=100", *settings)
            try:
                rows.append(_ours(name, server, said))
            finally:
                server.stop()
    report.table(
        "variants",
        ["variant", "mean ms", "P95 ms", "P99 ms", "memory MB", "CPU s", "whole run s"],
        rows,
    )
    report.say(f"{count} texts, {count * _REPEATS // _TEXTS} of them repeats, {_CALLERS} callers.")

    def draw(axes: Any) -> None:
        axes.barh([row[0] for row in rows], [row[1] for row in rows])
        axes.set_xlabel("mean, ms")
        axes.invert_yaxis()

    report.plot(draw)


def _ours(name: str, server: Server, said: list[str]) -> list[Any]:
    async def run() -> list[Outcome]:
        gate = asyncio.Semaphore(_CALLERS)

        async def one(text: str) -> Outcome:
            async with gate:
                return await request(server.uri, text)

        return list(await asyncio.gather(*map(one, said)))

    cpu, begin = server.cpu_s(), time.perf_counter()
    outcomes = asyncio.run(run())
    taken = time.perf_counter() - begin
    failed = [o.error for o in outcomes if o.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    times = [1000 * o.total for o in outcomes]
    return [name, *_summary(times), server.memory_mb(), server.cpu_s() - cpu, taken]


def _stock(config: Config, folder: Path, said: list[str]) -> list[Any]:
    from ..engine.reference import load_chat

    chat = load_chat(open_checkpoint(folder, verify=False), pick_device(config.engine.device))
    embedding = speaker.to_string(speaker.from_seed(2))
    times = []
    begin, cpu = time.perf_counter(), time.process_time()
    for text in progress(said, "stock"):
        steps = min(expected_steps(text), Sampling().max_steps)
        params = chat.InferCodeParams(
            spk_emb=embedding, min_new_token=steps, max_new_token=steps, show_tqdm=False
        )
        start = time.perf_counter()
        chat.infer([text], skip_refine_text=True, split_text=False, params_infer_code=params)
        times.append(1000 * (time.perf_counter() - start))
    taken = time.perf_counter() - begin
    spent = time.process_time() - cpu
    return ["stock, fp32, one at a time", *_summary(times), resident_mb(), spent, taken]


def _summary(times: list[float]) -> list[float]:
    return [statistics.mean(times), percentile(times, 0.95), percentile(times, 0.99)]
