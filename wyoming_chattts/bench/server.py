"""`bench server`: a server process under open-loop load over its socket.

Requests arrive at random (Poisson) at several rates, whatever the server does; each listener plays
at once and counts the times it runs dry. Rates are given as shares of the capacity that a short
closed-loop run finds; the last is that of the first again, to see what an overload leaves behind.
Then somebody asks for a word now and then while others ask for novels. At last the process is
killed and started again.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wyoming.audio import AudioChunk
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.tts import Synthesize

from ..config import Config
from .report import Report, percentile, progress

_WORDS = (
    "the light in kitchen is on door of garden closed heating will start at seven and music plays "
    "softly while rain falls outside this evening please remember to water all plants"
).split()
_BYTES_PER_SECOND = 48_000
_SHARES = (0.5, 0.9, 2.0, 0.5)
_NOVELISTS = (0, 1, 3, 8)
_NOVEL_SENTENCES = 60
_LISTENERS = (1, 2, 4)
_AUDIBLE_S = 0.02
"""A gap that any player bridges."""


@dataclass(slots=True)
class Outcome:
    """One request as its client saw it, seconds."""

    first: float | None = None
    total: float = 0.0
    audio: float = 0.0
    dry: int = 0
    gap: float = 0.0
    """How long the listener heard nothing in the middle."""
    error: str | None = None


@dataclass(slots=True)
class Server:
    """A server process."""

    process: "subprocess.Popen[str]"
    uri: str
    lines: list[str] = field(default_factory=list)

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Resident memory."""
        return process_figures(self.process.pid)["MB"]

    def stop(self) -> None:
        """Ends the process."""
        self.process.terminate()
        self.process.wait(60)


def process_figures(pid: int) -> dict[str, float]:
    """Descriptors, threads and resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208
        "threads": int(found["Threads"]),
        "MB": int(found["VmRSS"].split()[0]) / 1000,
    }


def start_server(folder: Path, data: Path, *settings: str) -> Server:
    """A server on a free port, once its model speaks."""
    command = [sys.executable, "-m", "wyoming_chattts", "serve", "--uri", "tcp://127.0.0.1:0"]
    command += ["--model-dir", str(folder), "--data-dir", str(data)]
    for setting in ("warmup.enabled=false", "model.verify=false", "web.enabled=false", *settings):
        command += ["--set", setting]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    uri = ""
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on " in line:
            uri = line.rsplit(" ", 1)[1].strip()
        if "speaking with ChatTTS" in line:
            break
    else:
        raise RuntimeError("the server ended before it spoke")
    # the rest of the log must not fill the pipe
    subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    return Server(process, uri)


async def request(uri: str, text: str) -> Outcome:
    """Speaks a text, and listens at the pace of playing."""
    outcome = Outcome()
    begin = time.perf_counter()
    plays_until = 0.0
    try:
        async with AsyncClient.from_uri(uri) as client:
            await client.write_event(Synthesize(text).event())
            while (event := await client.read_event()) is not None:
                now = time.perf_counter() - begin
                if Error.is_type(event.type):
                    outcome.error = Error.from_event(event).code or "error"
                    break
                if AudioChunk.is_type(event.type):
                    seconds = len(AudioChunk.from_event(event).audio) / _BYTES_PER_SECOND
                    if outcome.first is None:
                        outcome.first = plays_until = now
                    elif now > plays_until + _AUDIBLE_S:
                        outcome.dry += 1
                        outcome.gap += now - plays_until
                        plays_until = now
                    plays_until += seconds
                    outcome.audio += seconds
                if event.type == "audio-stop":
                    break
            else:
                outcome.error = "closed"
    except OSError as error:
        outcome.error = type(error).__name__
    outcome.total = time.perf_counter() - begin
    return outcome


def sentence(chance: random.Random) -> str:
    """A sentence of 6 to 14 words, most likely never said before."""
    words = chance.choices(_WORDS, k=chance.randint(6, 14))
    return " ".join(words).capitalize() + "."


async def _closed_loop(
    uri: str, workers: int, seconds: float, chance: random.Random
) -> tuple[list[Outcome], float]:
    """What so many clients get done, one request after the other, and in what time."""
    end = time.perf_counter() + seconds
    outcomes: list[Outcome] = []

    async def client() -> None:
        while time.perf_counter() < end:
            outcomes.append(await request(uri, sentence(chance)))

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(workers)))
    return outcomes, time.perf_counter() - begin


async def _open_loop(uri: str, rate: float, seconds: float, chance: random.Random) -> list[Outcome]:
    tasks: list[asyncio.Task[Outcome]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        tasks.append(asyncio.create_task(request(uri, sentence(chance))))
        await asyncio.sleep(chance.expovariate(rate))
    return list(await asyncio.gather(*tasks))


async def _beside_novels(
    uri: str, novelists: int, seconds: float, chance: random.Random
) -> list[Outcome]:
    """Short requests, one after the other with pauses, while others have novels read."""

    async def novelist() -> None:
        while True:
            await request(uri, " ".join(sentence(chance) for _ in range(_NOVEL_SENTENCES)))

    tasks = [asyncio.create_task(novelist()) for _ in range(novelists)]
    end = time.perf_counter() + seconds
    outcomes = []
    try:
        while time.perf_counter() < end:
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            outcomes.append(await request(uri, " ".join(chance.choices(_WORDS, k=2)) + "."))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return outcomes


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table."""
    seconds = 30.0 if options.quick else 120.0
    chance = random.Random(1)
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as data:
        server = start_server(folder, Path(data), "cache.enabled=false")
        try:
            listeners = []
            for n in _LISTENERS:
                outcomes, taken = asyncio.run(_closed_loop(server.uri, n, seconds / 1.5, chance))
                listeners.append(_listeners_row(n, outcomes, taken))
            capacity = len(outcomes) / taken
            report.table(
                "listeners",
                ["at once", "requests", "audio s per s", "first P50 ms", "gaps ms a request"],
                listeners,
            )
            report.say(f"Capacity, {n} clients in a closed loop: {capacity:.2f} requests/s.")
            report.say()
            for share in progress(_SHARES, "rates"):
                cpu, begin = server.cpu_s(), time.perf_counter()
                rate = capacity * share
                outcomes = asyncio.run(_open_loop(server.uri, rate, seconds, chance))
                spent = (server.cpu_s() - cpu) / (time.perf_counter() - begin)
                rows.append(_row(share, rate, outcomes, spent, server.memory_mb()))
            fairness = []
            for n in progress(_NOVELISTS, "novels"):
                outcomes = asyncio.run(_beside_novels(server.uri, n, seconds / 2, chance))
                fairness.append(_word_row(n, outcomes))
            server.process.kill()
            server.process.wait()
            begin = time.perf_counter()
            server = start_server(folder, Path(data), "cache.enabled=false")
            back = time.perf_counter() - begin
        finally:
            server.stop()
    report.table(
        "rates",
        [
            *("of capacity", "requests/s", "requests", "ok", "refused", "other errors"),
            "refusal P99 ms",
            *("first P50 ms", "first P95 ms", "first P99 ms", "total P50 ms", "total P95 ms"),
            *("RTF P50", "ran dry", "cores", "memory MB"),
        ],
        rows,
    )

    report.table(
        "words beside novels",
        [
            *("novels at once", "words asked for", "ok"),
            *("first P50 ms", "first P95 ms", "total P50 ms", "total P95 ms"),
        ],
        fairness,
    )

    report.say(f"Killed and started again, it speaks with the model after {back:.1f} s.")
    report.results["back_s"] = back

    def draw(axes: Any) -> None:
        climb = rows[:-1]
        for column, label in ((7, "P50"), (8, "P95"), (9, "P99")):
            axes.plot([row[0] for row in climb], [row[column] for row in climb], "o-", label=label)
        axes.set_xlabel("arrivals as a share of capacity")
        axes.set_ylabel("first audio, ms")
        axes.legend()

    report.plot(draw)


def _listeners_row(n: int, outcomes: list[Outcome], taken: float) -> list[Any]:
    firsts = [1000 * o.first for o in outcomes if o.first is not None]
    audio = sum(o.audio for o in outcomes) / taken
    gaps = [1000 * o.gap for o in outcomes]
    return [n, len(outcomes), audio, percentile(firsts, 0.5), sum(gaps) / max(1, len(gaps))]


def _word_row(novelists: int, outcomes: list[Outcome]) -> list[Any]:
    good = [o for o in outcomes if o.error is None]
    return [novelists, len(outcomes), len(good), *_latencies_ms(good, (0.5, 0.95))]


def _latencies_ms(good: list[Outcome], first_shares: Sequence[float]) -> list[float]:
    """Percentiles of first audio, then the median and the 95th of the whole."""
    firsts = [1000 * o.first for o in good if o.first is not None]
    totals = [1000 * o.total for o in good]
    return [
        *(percentile(firsts, share) for share in first_shares),
        *(percentile(totals, share) for share in (0.5, 0.95)),
    ]


def _row(
    share: float, rate: float, outcomes: list[Outcome], cores: float, memory: float
) -> list[Any]:
    good = [o for o in outcomes if o.error is None]
    refusals = [1000 * o.total for o in outcomes if o.error == "busy"]
    refused = len(refusals)
    return [
        *(share, rate, len(outcomes), len(good), refused, len(outcomes) - len(good) - refused),
        percentile(refusals, 0.99) if refusals else None,
        *_latencies_ms(good, (0.5, 0.95, 0.99)),
        percentile([o.total / o.audio for o in good if o.audio], 0.5),
        sum(o.dry > 0 for o in good),
        cores,
        memory,
    ]
