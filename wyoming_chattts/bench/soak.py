"""`bench soak`: a household's days in minutes, and whether anything grows.

Requests of a house (repeats, new sentences, streams, named voices, callers that hang up) go one
after the other and some at once; memory, descriptors, threads and the cache's size are read all
along, each time when nobody is connected. Growth is the slope over the second half, in units an
hour of wall time, with its standard error.
"""

import argparse
import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from .clients import describe_s, speak, vanish
from .report import Report, progress
from .server import Server, process_figures, sentence, start_server

_AT_ONCE = 3
_REQUESTS_A_DAY = 400
_REPEATS = 0.65
_CACHE_MB = 8
_SAMPLES = 120
_REQUESTS_A_SAMPLE = 10
"""The fewest between two samples: before each, all have to end."""
_REST_S = 0.2
"""For the server to close what its clients have left, before a sample."""


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table, and draws the figures over time."""
    count = options.requests or (400 if options.quick else 8000)
    with tempfile.TemporaryDirectory() as work:
        data = Path(work)
        # small enough to fill, so that making room is part of it
        server = start_server(folder, data, f"cache.size_mb={_CACHE_MB}")
        try:
            outcomes, samples = asyncio.run(_live(server, data, count, options.seed))
        finally:
            server.stop()
    report.say(
        f"{count} requests, {count / _REQUESTS_A_DAY:.1f} days of a house; seed {options.seed}."
    )
    report.say()
    report.table("outcomes", ["outcome", "times"], sorted(outcomes.items()))
    report.results["samples"] = samples
    hours = np.array([sample["s"] for sample in samples]) / 3600
    rows = []
    for name in ("MB", "descriptors", "threads", "cache MB"):
        values = np.array([sample[name] for sample in samples])
        slope, error = _slope(hours[len(hours) // 2 :], values[len(values) // 2 :])
        row = [float(values[0]), float(np.median(values)), float(values[-1])]
        rows.append([name, *row, slope, error])
    report.table(
        "growth", ["figure", "first", "median", "last", "slope an hour", "standard error"], rows
    )

    def draw(axes: Any) -> None:
        minutes = 60 * hours
        for name in ("MB", "descriptors", "threads", "cache MB"):
            values = np.array([sample[name] for sample in samples])
            axes.plot(
                minutes, values / max(values.max(), 1e-9), label=f"{name} (of {values.max():.0f})"
            )
        axes.set_xlabel("minutes")
        axes.set_ylabel("share of the largest value")
        axes.set_ylim(0, 1.05)
        axes.legend()

    report.plot(draw)


async def _live(
    server: Server, data: Path, count: int, seed: int
) -> tuple[Counter[str], list[dict[str, float]]]:
    chance = random.Random(seed)
    known = [sentence(chance) for _ in range(40)]
    outcomes: Counter[str] = Counter()
    samples: list[dict[str, float]] = []
    room = asyncio.Semaphore(_AT_ONCE)
    begin = time.perf_counter()

    async def one(own: random.Random) -> None:
        try:
            text = own.choice(known) if own.random() < _REPEATS else sentence(own)
            kind = own.random()
            if kind < 0.05:
                outcomes["describe" if await describe_s(server.uri) else "no describe"] += 1
            elif kind < 0.12:
                outcomes[(await vanish(server.uri, text, own)).outcome] += 1
            else:
                outcomes[(await speak(server.uri, text, streamed=kind < 0.5)).outcome] += 1
        finally:
            room.release()

    tasks: set[asyncio.Task[None]] = set()

    async def sample() -> None:
        await asyncio.gather(*tasks)
        await asyncio.sleep(_REST_S)
        samples.append({"s": time.perf_counter() - begin, **_figures(server, data)})

    for i in progress(range(count), "requests"):
        await room.acquire()
        task = asyncio.create_task(one(random.Random(chance.random())))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if i % max(_REQUESTS_A_SAMPLE, count // _SAMPLES) == 0:
            await sample()
    await sample()
    return outcomes, samples


def _figures(server: Server, data: Path) -> dict[str, float]:
    size = 0
    # folders and files of the cache come and go meanwhile
    for folder, _, names in os.walk(data / "cache"):
        for name in names:
            with contextlib.suppress(OSError):
                size += (Path(folder) / name).stat().st_size
    return {**process_figures(server.process.pid), "cache MB": size / 1e6}


def _slope(x: Any, y: Any) -> tuple[float, float]:
    """Least squares: the slope and its standard error, samples in a row being alike.

    What one sample adds to those before it is less by their correlation at lag 1 (Quenouille 1952).
    """
    x = x - x.mean()
    square = float((x**2).sum())
    slope = float((x * (y - y.mean())).sum() / square)
    rest = y - y.mean() - slope * x
    power = float((rest**2).sum())
    alike = max(0.0, float((rest[1:] * rest[:-1]).sum()) / power) if power else 0.0
    variance = power / max(1, len(x) - 2) * (1 + alike) / max(1e-9, 1 - alike)
    return slope, float(np.sqrt(variance / square))
