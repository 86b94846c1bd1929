"""Real servers for tests: a process of its own, or one inside the test with a watched engine."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from wyoming_chattts import config as settings
from wyoming_chattts import model, server
from wyoming_chattts.engine.base import (
    Engine,
    EngineInfo,
    FloatAudio,
    Mel,
    Prompt,
    Sampling,
    SlotOutput,
)

TIMEOUT_S = 60.0


class ServerProcess:
    """`wyoming-chattts serve` in a process of its own, on a free port."""

    def __init__(self, data_dir: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        command = [
            *(sys.executable, "-m", "wyoming_chattts", "serve", "--uri", "tcp://127.0.0.1:0"),
            *("--data-dir", str(data_dir), "--set", "audio.loudness_lufs=null"),
            *("--set", "web.enabled=false", *arguments),
        ]
        self.lines: list[str] = []
        self._seen = threading.Condition()
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", **(env or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self.wait_for("listening on ")
        # in a line of JSON too
        self.uri = line.rsplit(" ", 1)[1].rstrip('"}')

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._seen:
                self.lines.append(line.rstrip("\n"))
                self._seen.notify_all()
        with self._seen:
            self.lines.append("<end>")
            self._seen.notify_all()

    def wait_for(self, text: str, timeout: float = TIMEOUT_S) -> str:
        """The first log line with `text`; fails the test if the server ends without it."""
        deadline = time.monotonic() + timeout
        with self._seen:
            while True:
                for line in self.lines:
                    if text in line:
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or self.lines[-1:] == ["<end>"]:
                    pytest.fail(f"no {text!r} in the log:\n" + "\n".join(self.lines))
                self._seen.wait(left)

    def wait_ready(self) -> None:
        self.wait_for("speaking with ChatTTS")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        else:
            self.stop()


class WatchedEngine:
    """A real engine whose calls a test may hold up or make fail."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.bursts = 0
        self.starts: list[Prompt] = []
        self.stops: list[int] = []
        self.resets = 0
        self.closed = False
        self.before_burst: Callable[[int], None] = lambda _count: None
        self.before_start: Callable[[Prompt], None] = lambda _prompt: None
        self.gate = threading.Event()
        """While cleared, bursts wait."""
        self.gate.set()

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    def start(self, slot: int, prompt: Prompt, sampling: Sampling) -> None:
        self.starts.append(prompt)
        self.before_start(prompt)
        self.engine.start(slot, prompt, sampling)

    def burst(self, n_steps: int) -> list[SlotOutput]:
        self.gate.wait(TIMEOUT_S)
        self.bursts += 1
        self.before_burst(self.bursts)
        return self.engine.burst(n_steps)

    def stop(self, slot: int) -> None:
        self.stops.append(slot)
        self.engine.stop(slot)

    def vocode(self, mel: Mel) -> FloatAudio:
        return self.engine.vocode(mel)

    def reset(self) -> None:
        self.resets += 1
        self.engine.reset()

    def warm_up(self) -> None:
        self.engine.warm_up()

    def close(self) -> None:
        """What is below stays open: it serves several tests."""
        self.closed = True
        self.engine.reset()


@dataclass
class RunningServer:
    """A server inside the test's event loop, and its engine."""

    server: server.Server
    engines: list[WatchedEngine]
    task: asyncio.Task[int]

    @property
    def engine(self) -> WatchedEngine:
        return self.engines[-1]

    @property
    def uri(self) -> str:
        return self.server.uri

    @property
    def outcomes(self) -> dict[str, int]:
        return self.server.status.metrics.outcomes


@contextlib.asynccontextmanager
async def running_server(
    monkeypatch: pytest.MonkeyPatch,
    make_engine: Callable[[settings.Config], Engine] | None,
    **overrides: Any,
) -> AsyncIterator[RunningServer]:
    """A server with its model loaded (or, with None, with the fallback voice only)."""
    values: dict[str, Any] = {
        "server.uri": "tcp://127.0.0.1:0",
        "warmup.enabled": False,
        # its one change of a voice's gain would come in the middle of a test
        "audio.loudness_lufs": None,
        "web.enabled": False,
    }
    config = settings.load(environ={}, overrides=values | overrides)
    engines: list[WatchedEngine] = []

    def load(given: settings.Config) -> Engine:
        assert make_engine is not None
        engines.append(WatchedEngine(make_engine(given)))
        return engines[-1]

    if make_engine is not None:
        monkeypatch.setattr(model, "present", lambda _path: True)
        monkeypatch.setattr(model, "load_engine", load)
        monkeypatch.setattr(server, "load_engine", load)
    instance = server.Server(config)
    task = asyncio.create_task(instance.run())
    try:
        if make_engine is not None:
            await eventually(lambda: instance.speech.worker is not None, task)
        else:
            await eventually(lambda: bool(instance.uri), task)
        yield RunningServer(instance, engines, task)
    finally:
        for engine in engines:
            engine.gate.set()
        instance._stopping.set()
        await task


async def eventually(
    condition: Callable[[], bool], task: asyncio.Task[Any] | None = None, timeout: float = TIMEOUT_S
) -> None:
    """Waits until a condition holds, looking at each turn of the event loop."""
    async with asyncio.timeout(timeout):
        while not condition():
            if task is not None and task.done():
                raise AssertionError(f"the server ended: {task}")
            await asyncio.sleep(0.001)


@dataclass
class Answer:
    """What came back for a request."""

    events: list[Event] = field(default_factory=list)
    pcm: bytes = b""
    first_audio_s: float | None = None
    total_s: float = 0.0

    @property
    def types(self) -> list[str]:
        """Types of the events, runs of audio chunks as one."""
        kept: list[str] = []
        for event in self.events:
            if not (kept and kept[-1] == event.type == "audio-chunk"):
                kept.append(event.type)
        return kept

    @property
    def error(self) -> Error | None:
        return next((Error.from_event(e) for e in self.events if Error.is_type(e.type)), None)


async def collect(client: AsyncClient, *, streamed: bool) -> Answer:
    """Reads a request's answer to its end, an error or the end of the connection."""
    answer = Answer()
    begin = time.perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        while (event := await client.read_event()) is not None:
            answer.events.append(event)
            if AudioChunk.is_type(event.type):
                if answer.first_audio_s is None:
                    answer.first_audio_s = time.perf_counter() - begin
                answer.pcm += AudioChunk.from_event(event).audio
            if SynthesizeStopped.is_type(event.type):
                break
            if not streamed and AudioStop.is_type(event.type):
                break
    answer.total_s = time.perf_counter() - begin
    return answer


async def say(uri: str, text: str, voice: str | None = None) -> Answer:
    """A plain request on a connection of its own, as Home Assistant makes it."""
    async with AsyncClient.from_uri(uri) as client:
        chosen = SynthesizeVoice(name=voice) if voice else None
        await client.write_event(Synthesize(text, voice=chosen).event())
        return await collect(client, streamed=False)


async def say_streamed(uri: str, pieces: Iterable[str]) -> Answer:
    """A streamed request, with the whole text repeated before its end as Home Assistant does."""
    pieces = list(pieces)
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(SynthesizeStart().event())
        for piece in pieces:
            await client.write_event(SynthesizeChunk(piece).event())
        await client.write_event(Synthesize("".join(pieces)).event())
        await client.write_event(SynthesizeStop().event())
        return await collect(client, streamed=True)


async def describe(uri: str) -> Info:
    """The server's description."""
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Describe().event())
        event = await asyncio.wait_for(client.read_event(), TIMEOUT_S)
        assert event is not None
        return Info.from_event(event)


def assert_whole(answer: Answer, *, streamed: bool = False) -> None:
    """One start, audio with running times, one stop."""
    expected = ["audio-start", "audio-chunk", "audio-stop"]
    assert answer.types == expected + (["synthesize-stopped"] if streamed else []), answer.types
    start = AudioStart.from_event(answer.events[0])
    assert (start.rate, start.width, start.channels) == (24_000, 2, 1)
    sent = 0
    for event in answer.events:
        if AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert chunk.timestamp == round(sent / 48)
            assert len(chunk.audio) <= 1920
            sent += len(chunk.audio)


def loudness(pcm: bytes) -> float:
    """Root mean square of 16-bit PCM, full scale 1."""
    import numpy as np

    samples = np.frombuffer(pcm, dtype="<i2").astype(float) / 32768
    return float(np.sqrt((samples**2).mean())) if samples.size else 0.0


def equal(a: bytes, b: bytes) -> bool:
    """Equal to the bit; a function, since pytest would compare megabytes line by line."""
    return a == b


def same_audio(a: bytes, b: bytes) -> bool:
    """Equal to the rounding of float32 sums, whose order depends on how many slots run."""
    import numpy as np

    if len(a) != len(b):
        return False
    x, y = (np.frombuffer(pcm, dtype="<i2").astype(int) for pcm in (a, b))
    return bool(np.abs(x - y).max(initial=0) <= 2)
