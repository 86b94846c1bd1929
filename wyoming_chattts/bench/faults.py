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
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..errors import EngineFailed
from .clients import Answer, describe_s, garbage, never_reads, speak, trickle, vanish
from .report import Report
from .server import process_figures

_TEXTS = tuple(
    f"Sentence number {n} is about the {what}."
    for n, what in enumerate(
        "garden kitchen hall cellar attic window door lamp heating music rain wind".split(), 1
    )
)
_GOOD = {"plain": 40, "streamed": 20}
_BAD = {"vanish": 12, "garbage": 8, "trickle": 8, "never reads": 6}
_HOUSE = {
    **{"cache removed": 1, "cache damaged": 1, "cache locked": 1, "cache blocked": 1},
    **{"no descriptors": 0.5, "model rewritten": 0.5, "killed": 0.3},
}
_MOUNTED = {"cache full": 1, "cache read-only": 1}
"""Faults of a file system, where this process may mount one."""
_CACHE_MB = 24
_ALLOWED = {"ok", "busy", "timeout", "engine_failed", "model_unavailable", "shutting_down"}
"""Ways in which a good request may end. `closed` is added while the process is being replaced."""
_AT_ONCE = 6
_DESCRIBE_EVERY_S = 0.25
_STALL_S = 2.0
_CLOSE_S = 0.25


@dataclass(slots=True)
class _Supervised:
    """A faulty server that is started again whenever it ends."""

    folder: Path
    data: Path
    seed: int
    faults: bool = True
    mounted: bool = False
    """Whether the cache lies on a small file system of its own."""
    port: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    process: "subprocess.Popen[str] | None" = None
    down_since: float | None = None
    downs: list[tuple[float, float]] = field(default_factory=list)
    """When the process was away, by `time.monotonic`."""
    spoiling: threading.Lock = field(default_factory=threading.Lock)
    """One fault of the disk at a time: they undo what they did."""
    lines: list[str] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "wyoming_chattts.bench.faulty"]
        command.append(str(self.seed if self.faults else 0))
        command += [
            *(f"server.uri=tcp://127.0.0.1:{self.port}", f"model.dir={self.folder}"),
            *(f"data_dir={self.data}", f"worker.stall_s={_STALL_S}", "engine.slots=4"),
            *("web.enabled=false", "warmup.enabled=false", "audio.loudness_lufs=null"),
            *("fallback.enabled=false", "server.read_timeout_s=5", "server.idle_timeout_s=5"),
            *("server.write_timeout_s=5", "model.retry_min_s=1", "model.download=false"),
            f"cache.size_mb={_CACHE_MB // 3}",
        ]
        self.seed += 1
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        ready = threading.Event()
        threading.Thread(target=self._read, args=(self.process, ready), daemon=True).start()
        if not ready.wait(120):
            raise RuntimeError("the server did not begin to speak:\n" + "\n".join(self.lines[-20:]))
        if self.down_since is not None:
            self.downs.append((self.down_since, time.monotonic()))
            self.down_since = None

    def _read(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr as log:
            for line in log:
                self._take(line, process, ready)
        ready.set()

    def _take(self, line: str, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        self.lines.append(line.rstrip())
        del self.lines[:-2000]
        if "the engine is lost" in line and process is self.process:
            # it tells its callers, and ends
            self.down_since = self.down_since or time.monotonic()
        if "listening on " in line:
            self.port = int(line.rsplit(":", 1)[1])
        if "speaking with ChatTTS" in line:
            ready.set()

    async def supervise(self) -> None:
        """Starts the process again when it ends."""
        while True:
            await asyncio.sleep(0.02)
            if self.process is not None and self.process.poll() is not None:
                self.down_since = self.down_since or time.monotonic() - 0.05
                self.restarts[f"status {self.process.returncode}"] += 1
                await asyncio.to_thread(self.start)

    def away(self, begin: float, end: float) -> bool:
        """Whether the process was being replaced at any time of an interval."""
        current = [] if self.down_since is None else [(self.down_since, end)]
        return any(
            a <= end + _CLOSE_S and begin <= b + _CLOSE_S for a, b in [*self.downs, *current]
        )

    def stop(self) -> int:
        """Ends the process in order; returns its status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def figures(self) -> dict[str, float]:
        """Descriptors, threads and memory of the process."""
        assert self.process is not None
        return process_figures(self.process.pid)


@dataclass(slots=True)
class Findings:
    """What a run found; `wrong` is empty if all held."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    describes: list[float] = field(default_factory=list)
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
            ["slowest describe, ms", 1000 * max(found.describes, default=0.0)],
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
        truth = await _truth(folder, Path(work) / "truth")
        # a copy: its files are written anew meanwhile
        copy = Path(work) / "model"
        shutil.copytree(folder, copy)
        server = _Supervised(copy, Path(work) / "data", seed)
        cache = server.data / "cache"
        cache.mkdir(parents=True)
        server.mounted = _mount(cache, f"size={_CACHE_MB}m")
        try:
            await asyncio.to_thread(server.start)
            for text in _TEXTS[:3]:
                await speak(server.uri, text)
            found.before = server.figures()
            async with _beside(server.supervise(), _watch(server, found)):
                await _storm(server, found, truth, count, chance)
                await _calm(server, found, truth)
            status = await asyncio.to_thread(server.stop)
            if status not in (0, 70):
                found.wrong.append(f"the server ended with status {status}")
        finally:
            if server.process is not None and server.process.poll() is None:
                server.process.kill()
            if server.mounted:
                _unmount(cache)
        found.restarts = server.restarts
        found.downs = [end - begin for begin, end in server.downs]
    return found


async def _truth(folder: Path, data: Path) -> dict[str, bytes]:
    """Each text's audio without faults."""
    server = _Supervised(folder, data, 0, faults=False)
    await asyncio.to_thread(server.start)
    try:
        return {text: (await speak(server.uri, text)).pcm for text in _TEXTS}
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


async def _watch(server: _Supervised, found: Findings) -> None:
    """Asks for a description all the time."""
    while True:
        begin = time.monotonic()
        taken = await describe_s(server.uri)
        end = time.monotonic()
        await asyncio.sleep(_DESCRIBE_EVERY_S)
        if taken is not None:
            found.describes.append(taken)
        elif not server.away(begin, end):
            found.wrong.append("a describe was not answered")


async def _storm(
    server: _Supervised, found: Findings, truth: dict[str, bytes], count: int, chance: random.Random
) -> None:
    kinds = {**_GOOD, **_BAD, **_HOUSE, **(_MOUNTED if server.mounted else {})}
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(kind: str, text: str, own: random.Random) -> None:
        try:
            # whoever calls a house that is silent calls again later, not a thousand times
            while server.down_since is not None:  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.05)
            begin = time.monotonic()
            answer = await _do(kind, text, own, server)
            end = time.monotonic()
            if answer.outcome == "closed":
                # the supervisor needs a moment to notice what this client saw
                await asyncio.sleep(_CLOSE_S)
            _judge(kind, text, answer, server.away(begin, end), found, truth)
        finally:
            room.release()

    tasks: set[asyncio.Task[None]] = set()

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            found.wrong.append(f"the harness itself failed: {error!r}")

    for _ in range(count):
        (kind,) = chance.choices(list(kinds), weights=list(kinds.values()))
        await room.acquire()
        own = random.Random(chance.random())
        task = asyncio.create_task(one(kind, chance.choice(_TEXTS), own))
        tasks.add(task)
        task.add_done_callback(ended)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _do(kind: str, text: str, chance: random.Random, server: _Supervised) -> Answer:
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
            if server.process is not None and server.down_since is None:
                server.process.kill()
        case "no descriptors":
            await _take_descriptors(server)
        case "model rewritten":
            await asyncio.to_thread(_rewrite, server, chance)
        case "cache full" | "cache read-only":
            await asyncio.to_thread(_spoil_mount, kind, server)
        case _:
            await asyncio.to_thread(_spoil_cache, kind, server.data / "cache")
    return Answer("done")


async def _take_descriptors(server: _Supervised) -> None:
    """For a while the process can open nothing."""
    if server.process is None or server.down_since is not None:
        return
    pid = server.process.pid
    with contextlib.suppress(OSError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
        await asyncio.sleep(0.7)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


def _rewrite(server: _Supervised, chance: random.Random) -> None:
    """A model file is written anew, as `cp` does: in place, and half there for a moment; or as a
    download is: by another file of its name."""
    path = chance.choice(sorted(server.folder.rglob("*.safetensors")))
    with server.spoiling:
        contents = path.read_bytes()
        if chance.random() < 0.5:
            fresh = path.with_suffix(".new")
            fresh.write_bytes(contents)
            fresh.replace(path)
            return
        with path.open("wb") as file:
            file.write(contents[: len(contents) // 2])
            file.flush()
            time.sleep(0.2)
            file.write(contents[len(contents) // 2 :])


def _mount(folder: Path, options: str) -> bool:
    """Puts a file system in memory over a folder, where that is allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return shutil.which("mount") is not None and not _quiet(command)


def _unmount(folder: Path) -> None:
    _quiet(["umount", "-l", str(folder)])


def _quiet(command: list[str]) -> int:
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


def _spoil_mount(kind: str, server: _Supervised) -> None:
    folder = server.data / "cache"
    with server.spoiling:
        _fill_or_cover(kind, folder)


def _fill_or_cover(kind: str, folder: Path) -> None:
    if kind == "cache full":
        filler = folder / "filler"
        try:
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(65_536))
                    file.flush()
            time.sleep(0.5)
        finally:
            filler.unlink(missing_ok=True)
    elif _mount(folder, "ro"):
        try:
            time.sleep(0.5)
        finally:
            _unmount(folder)


def _spoil_cache(kind: str, folder: Path) -> None:
    database = folder / "segments" / "cache.db"
    try:
        if kind == "cache removed":
            shutil.rmtree(folder, ignore_errors=True)
        elif kind == "cache damaged":
            with database.open("r+b") as file:
                file.write(os.urandom(4096))
        elif kind == "cache blocked":
            shutil.rmtree(folder / "segments", ignore_errors=True)
            (folder / "segments").write_bytes(b"in the way")
            time.sleep(0.5)
            (folder / "segments").unlink(missing_ok=True)
        else:
            with contextlib.closing(sqlite3.connect(database, timeout=0.1)) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                time.sleep(0.5)
    except (OSError, sqlite3.Error):
        pass


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


async def _calm(server: _Supervised, found: Findings, truth: dict[str, bytes]) -> None:
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
    for _ in range(100):
        found.after = server.figures()
        if found.after["descriptors"] <= found.before["descriptors"] + 4:
            break
        await asyncio.sleep(0.2)
    if found.after["descriptors"] > found.before["descriptors"] + 4:
        found.wrong.append(f"descriptors: {found.before} before, {found.after} after")
    if found.after["threads"] > found.before["threads"] + 4:
        found.wrong.append(f"threads: {found.before} before, {found.after} after")
    if found.after["MB"] > found.before["MB"] + 200:
        found.wrong.append(f"memory: {found.before} before, {found.after} after")
