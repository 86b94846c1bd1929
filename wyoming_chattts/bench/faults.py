"""`bench faults`: a real server process under random faults, from a seed that is printed.

Clients vanish, do not read, trickle and send garbage; the engine raises, runs out of memory,
computes nonsense, dawdles and hangs; the cache is removed, damaged, locked, blocked, full and
read-only; model files are written anew, descriptors run out, the clock jumps, the process is
killed. A supervisor of one line starts it again. What must hold: every request ends in an allowed
way, audio that is called whole is that of a run without faults, describe is answered, and nothing
leaks.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..errors import EngineFailed
from . import disk_faults
from .clients import Answer, describe_s, garbage, never_reads, speak, trickle, vanish
from .report import Report, percentile
from .supervised import CACHE_MB, CLOSE_S, DEADLINE_S, Supervised

_TEXTS = tuple(
    f"Sentence number {n} is about the {what}."
    for n, what in enumerate(
        "garden kitchen hall cellar attic window door lamp heating music rain wind".split(), 1
    )
)
_GOOD = {"plain": 40, "streamed": 20}
_BAD = {"vanish": 12, "garbage": 8, "trickle": 8, "never reads": 6}
_HOUSE = {
    **{
        "cache removed": 1,
        "cache damaged": 1,
        "cache cut off": 0.5,
        "cache locked": 1,
        "cache blocked": 1,
    },
    **{"no descriptors": 0.5, "model rewritten": 0.5},
}
_ENDS = {"killed": 0.3, "hung": 0.1}
"""Faults after which there is another process."""
_MOUNTED = {"cache full": 1, "cache read-only": 1}
"""Faults of a file system, where this process may mount one."""
_ALLOWED = {"ok", "busy", "timeout", "engine_failed", "model_unavailable", "shutting_down"}
"""Ways in which a good request may end. `closed` is added while the process is being replaced."""
_AT_ONCE = 6
_DESCRIBE_EVERY_S = 0.25
_DESCRIBE_LIMIT_S = 1.0
"""Far above what it takes: a machine that runs a storm and a server has its moments."""
_SLACK_S = 3.0
_BACK_S = 30.0
_LAST_PART = 0.2
"""The share of requests, at the end, in which nothing kills the process: what leaks must grow."""


@dataclass(slots=True)
class Findings:
    """What a run found; `wrong` is empty if all held."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    describes: list[float] = field(default_factory=list)
    """Seconds that each took, save where the process had no descriptors."""
    describes_without: list[float] = field(default_factory=list)
    slowest: float = 0.0
    """Seconds of the slowest request."""
    restarts: Counter[str] = field(default_factory=Counter)
    downs: list[float] = field(default_factory=list)
    """Seconds from each end of the process to a server that speaks with its model again."""
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table of faults and outcomes; raises `EngineFailed` if something did not hold."""
    count = options.requests or (300 if options.quick else 10_000)
    report.say(f"Seed {options.seed}, {count} requests.")
    report.say()
    found = asyncio.run(attack(folder, count, options.seed))
    rows = [[kind, outcome, n] for (kind, outcome), n in sorted(found.counts.items())]
    report.table("outcomes", ["what", "outcome", "times"], rows)
    report.table(
        "server",
        ["figure", "value"],
        [
            ["describes", len(found.describes)],
            ["describe P50, ms", 1000 * percentile(found.describes, 0.5)],
            ["describe P99, ms", 1000 * percentile(found.describes, 0.99)],
            ["slowest describe, ms", 1000 * max(found.describes, default=0.0)],
            [
                "slowest describe without descriptors, ms",
                1000 * max(found.describes_without, default=0.0),
            ],
            ["slowest request, s", found.slowest],
            ["longest without a server that speaks, s", max(found.downs, default=0.0)],
            *([f"ended with {status}", n] for status, n in sorted(found.restarts.items())),
            *([f"{k} before", v] for k, v in found.before.items()),
            *([f"{k} after", v] for k, v in found.after.items()),
        ],
    )
    for line in found.wrong:
        report.say(f"WRONG: {line}")
    if found.wrong:
        raise EngineFailed(f"{len(found.wrong)} things did not hold (seed {options.seed})")
    report.say("Everything held.")


async def attack(folder: Path, count: int, seed: int) -> Findings:
    """Runs the whole of it."""
    found, chance = Findings(), random.Random(seed)
    with tempfile.TemporaryDirectory() as work:
        truth, found.before = await _without_faults(folder, Path(work) / "truth")
        # a copy: its files are written anew meanwhile
        copy = Path(work) / "model"
        shutil.copytree(folder, copy)
        server = Supervised(copy, Path(work) / "data", seed)
        cache = server.data / "cache"
        cache.mkdir(parents=True)
        server.mounted = disk_faults.mount(cache, f"size={CACHE_MB}m")
        try:
            await asyncio.to_thread(server.start)
            async with _beside(server.supervise(), _watch(server, found)):
                last = int(count * _LAST_PART)
                await _storm(server, found, truth, count - last, chance, _HOUSE | _ENDS)
                await _storm(server, found, truth, last, chance, _HOUSE)
                await _calm(server, found, truth)
            status = await asyncio.to_thread(server.stop)
            if status not in (0, 70):
                found.wrong.append(f"the server ended with status {status}")
        finally:
            if server.process is not None and server.process.poll() is None:
                server.process.kill()
                server.process.wait()
            if server.mounted:
                disk_faults.unmount(cache)
        found.restarts = server.restarts
        found.downs = [end - begin for begin, end in server.downs]
        if found.downs and max(found.downs) > _BACK_S:
            found.wrong.append(f"it came back after {max(found.downs):.1f} s")
    return found


async def _without_faults(folder: Path, data: Path) -> tuple[dict[str, bytes], dict[str, float]]:
    """Each text's audio, and what the process then holds, without faults."""
    server = Supervised(folder, data, 0, faults=False)
    await asyncio.to_thread(server.start)
    try:
        truth = {text: (await speak(server.uri, text)).pcm for text in _TEXTS}
        return truth, await server.figures()
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def _beside(*works: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(server: Supervised, found: Findings) -> None:
    """Asks for a description all the time."""
    while True:
        begin = time.monotonic()
        taken = await describe_s(server.uri)
        end = time.monotonic()
        await asyncio.sleep(_DESCRIBE_EVERY_S)
        without = any(a <= end and begin <= b for a, b in server.without_descriptors)
        if taken is None:
            if not server.away(begin, end):
                found.wrong.append("a describe was not answered")
        elif without:
            found.describes_without.append(taken)
        else:
            found.describes.append(taken)
            if taken > _DESCRIBE_LIMIT_S and not server.away(begin, end):
                found.wrong.append(f"a describe took {1000 * taken:.0f} ms")


async def _storm(
    server: Supervised,
    found: Findings,
    truth: dict[str, bytes],
    count: int,
    chance: random.Random,
    house: dict[str, float],
) -> None:
    kinds = {**_GOOD, **_BAD, **house, **(_MOUNTED if server.mounted else {})}
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(kind: str, text: str, own: random.Random) -> None:
        try:
            # whoever calls a house that is silent calls again later, not a thousand times
            while server.down_since is not None:  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.05)
            begin = time.monotonic()
            answer = await _do(kind, text, own, server)
            end = time.monotonic()
            if kind in _GOOD:
                found.slowest = max(found.slowest, end - begin)
                if end - begin > DEADLINE_S + _SLACK_S:
                    found.wrong.append(f"a request took {end - begin:.1f} s")
            if answer.outcome == "closed":
                # the supervisor needs a moment to notice what this client saw
                await asyncio.sleep(CLOSE_S)
            _judge(kind, text, answer, server.away(begin, end), found, truth)
        finally:
            room.release()

    tasks: set[asyncio.Task[None]] = set()

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            found.wrong.append(f"the harness itself failed: {error!r}")

    # each kind at least once
    schedule = chance.choices(
        list(kinds), weights=list(kinds.values()), k=max(0, count - len(kinds))
    )
    schedule += kinds
    chance.shuffle(schedule)
    for kind in schedule:
        await room.acquire()
        own = random.Random(chance.random())
        task = asyncio.create_task(one(kind, chance.choice(_TEXTS), own))
        tasks.add(task)
        task.add_done_callback(ended)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _do(kind: str, text: str, chance: random.Random, server: Supervised) -> Answer:
    match kind:
        case "plain" | "streamed":
            return await speak(server.uri, text, streamed=kind == "streamed")
        case "vanish":
            return await vanish(server.uri, text, chance)
        case "garbage":
            return await garbage(server.uri, chance)
        case "trickle":
            return await trickle(server.uri, text, chance)
        case "never reads":
            return await never_reads(server.uri, text, chance)
        case "killed":
            server.send_signal(signal.SIGKILL)
        case "hung":
            server.send_signal(signal.SIGUSR2)
        case "no descriptors":
            await server.take_descriptors()
        case _:
            await asyncio.to_thread(_spoil, kind, server, chance)
    return Answer("done")


def _spoil(kind: str, server: Supervised, chance: random.Random) -> None:
    with server.spoiling:
        if kind == "model rewritten":
            disk_faults.rewrite(chance.choice(sorted(server.folder.rglob("*.safetensors"))), chance)
        else:
            disk_faults.spoil(kind, server.data / "cache")


def _judge(
    kind: str,
    text: str,
    answer: Answer,
    replaced: bool,
    found: Findings,
    truth: dict[str, bytes],
) -> None:
    outcome = answer.outcome
    if kind in _GOOD:
        if outcome == "closed" and replaced:
            outcome = "closed, process replaced"
        elif outcome not in _ALLOWED:
            found.wrong.append(f"a request ended with {outcome}")
        if outcome == "ok" and not _same(answer.pcm, truth[text]):
            found.wrong.append(f"audio called whole differs ({len(answer.pcm)} bytes): {text}")
        elif not _same(answer.pcm, truth[text][: len(answer.pcm)]):
            found.wrong.append(f"audio before an error differs: {text}")
    elif outcome == "silent":
        found.wrong.append(f"{kind}: the server said nothing and did not close")
    found.counts[kind, outcome] += 1


def _same(a: bytes, b: bytes) -> bool:
    """Equal to the rounding of sums whose order depends on how many slots run."""
    if len(a) != len(b):
        return False
    x, y = (np.frombuffer(pcm, dtype="<i2").astype(int) for pcm in (a, b))
    return bool(np.abs(x - y).max(initial=0) <= 2)


async def _calm(server: Supervised, found: Findings, truth: dict[str, bytes]) -> None:
    """After the storm: it speaks, and what was held is given back."""
    for text in _TEXTS:
        for _ in range(20):
            answer = await speak(server.uri, text)
            if answer.outcome == "ok":
                break
            await asyncio.sleep(0.5)
        if answer.outcome != "ok" or not _same(answer.pcm, truth[text]):
            found.wrong.append(f"after the storm a request ends with {answer.outcome}")
    # connections that were left open are let go after the idle timeout
    for _ in range(50):
        found.after = await server.figures()
        leaks = _leaks(found.before, found.after)
        if not leaks:
            break
        await asyncio.sleep(0.2)
    found.wrong += leaks


def _leaks(before: dict[str, float], after: dict[str, float]) -> list[str]:
    return [
        f"{name}: {before.get(name)} before, {value} after"
        for name, value in after.items()
        if value > before.get(name, 0) + _MAY_GROW[name]
    ]


_MAY_GROW = {
    **{"descriptors": 4, "threads": 4, "tasks": 4, "MB": 200},
    **{"requests": 0, "segments": 0, "queued": 0, "slots": 0, "contexts": 0},
}
"""What a process may hold more after a storm: somebody asks for a description meanwhile."""
