"""A server process with a faulty engine, and the supervisor that starts it again."""

import asyncio
import contextlib
import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .faulty import FIGURES
from .server import process_figures

CACHE_MB = 24
"""Of the file system under the cache, where there is one; the cache may have a third."""
DEADLINE_S = 20.0
CLOSE_S = 0.25
_STALL_S = 2.0
_START_S = 120.0
_TELL_S = 30.0


@dataclass(slots=True)
class Supervised:
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
    told: dict[str, float] = field(default_factory=dict)
    """What the process last told of itself."""
    without_descriptors: list[tuple[float, float]] = field(default_factory=list)
    """When it could open nothing."""

    @property
    def uri(self) -> str:
        """Where it listens."""
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process, and waits until it speaks (blocks)."""
        command = [sys.executable, "-m", "wyoming_chattts.bench.faulty"]
        command.append(str(self.seed if self.faults else 0))
        command += [
            *(f"server.uri=tcp://127.0.0.1:{self.port}", f"model.dir={self.folder}"),
            *(f"data_dir={self.data}", f"worker.stall_s={_STALL_S}", "engine.slots=4"),
            *("web.enabled=false", "warmup.enabled=false", "audio.loudness_lufs=null"),
            *("fallback.enabled=false", "server.read_timeout_s=5", "server.idle_timeout_s=5"),
            *("server.write_timeout_s=5", "model.retry_min_s=1", "model.download=false"),
            *(f"cache.size_mb={CACHE_MB // 3}", f"deadline.total_s={DEADLINE_S}"),
        ]
        self.seed += 1
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        ready = threading.Event()
        threading.Thread(target=self._read, args=(self.process, ready), daemon=True).start()
        if not ready.wait(_START_S):
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
        if line.startswith(FIGURES):
            self.told = json.loads(line.removeprefix(FIGURES))
            return
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
        return any(a <= end + CLOSE_S and begin <= b + CLOSE_S for a, b in [*self.downs, *current])

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process, if there is one that speaks."""
        if self.process is not None and self.down_since is None:
            self.process.send_signal(number)

    def stop(self) -> int:
        """Ends the process in order; returns its status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    async def figures(self) -> dict[str, float]:
        """What the process holds: descriptors, threads, memory, and what it tells of itself.

        Raises `TimeoutError` if it does not tell.
        """
        assert self.process is not None
        self.told = {}
        self.process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(_TELL_S):
            while not self.told:  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.01)
        return {**process_figures(self.process.pid), **self.told}

    async def take_descriptors(self) -> None:
        """For a while the process can open nothing."""
        if self.process is None or self.down_since is not None:
            return
        pid, begin = self.process.pid, time.monotonic()
        with contextlib.suppress(OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
            try:
                await asyncio.sleep(0.7)
            finally:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
                # asyncio accepts again a second after it could not
                self.without_descriptors.append((begin, time.monotonic() + 1.0))
