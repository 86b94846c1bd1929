"""What goes wrong while a house is spoken to, and how it is got over: nonsense from the model, a
model that is unloaded, too many callers; and what the log says of it."""

import asyncio
import gc
import json
import logging
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.tts import Synthesize

from wyoming_chattts.config import Config, EngineConfig, SamplingConfig, StreamConfig
from wyoming_chattts.engine.base import End, Engine, Prompt, Sampling
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.fast import FastEngine
from wyoming_chattts.errors import EngineFailed
from wyoming_chattts.flights import Flight
from wyoming_chattts.handler import Connection
from wyoming_chattts.logs import JsonFormatter
from wyoming_chattts.model import settle, unsettle
from wyoming_chattts.speech import whole

from .harness import (
    RunningServer,
    ServerProcess,
    assert_whole,
    describe,
    equal,
    eventually,
    loudness,
    running_server,
    say,
)

TEXT = "It is late, and the light in the kitchen is still on."


def engine_of(folder: Path, precision: str = "fp32") -> FastEngine:
    return FastEngine(
        open_checkpoint(folder),
        EngineConfig.model_validate({"slots": 3, "precision": precision}),
        SamplingConfig(),
        StreamConfig(),
    )


class Poison:
    """Makes a slot's hidden states not finite from a step on."""

    def __init__(self, engine: FastEngine, slot: int, after: int) -> None:
        self.engine, self.slot, self.after = engine, slot, after
        self.step = engine._gpt.step
        engine._gpt.step = self  # type: ignore[method-assign, assignment]

    def __call__(self, *arguments: Any) -> torch.Tensor:
        hidden = self.step(*arguments).clone()
        self.after -= 1
        if self.after < 0 and hidden.shape[0] > self.slot:
            hidden[self.slot] = torch.nan
        return hidden

    def cure(self) -> None:
        self.engine._gpt.step = self.step  # type: ignore[method-assign]


def drain(engine: FastEngine) -> dict[int, tuple[float, End]]:
    """Seconds of audio and the end, by slot."""
    audio: dict[int, float] = {}
    ends: dict[int, tuple[float, End]] = {}
    while engine._slots:
        for output in engine.burst(8):
            audio[output.slot] = audio.get(output.slot, 0.0) + output.audio.size / 24_000
            if output.end is not None:
                ends[output.slot] = (audio[output.slot], output.end)
    return ends


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_nonsense_ends_its_slot_and_no_other(tiny_dir: Path, precision: str) -> None:
    engine = engine_of(tiny_dir, precision)
    poison = Poison(engine, slot=1, after=60)
    for slot in range(3):
        engine.start(slot, Prompt(TEXT), Sampling(seed=slot))
    ends = drain(engine)
    assert ends[0][1] is ends[2][1] is End.COMPLETE
    assert ends[1][1] is End.BROKEN
    # what was finite before was given out, and nothing after it
    assert 0 < ends[1][0] < 60 / 46.875
    poison.cure()
    engine.start(1, Prompt(TEXT), Sampling())
    assert drain(engine)[1][1] is End.COMPLETE


async def test_nonsense_fails_its_request_and_is_never_cached(
    monkeypatch: pytest.MonkeyPatch, tiny_dir: Path, tmp_path: Path
) -> None:
    def make(_config: Config) -> Engine:
        return engine_of(tiny_dir)

    async with running_server(monkeypatch, make, data_dir=str(tmp_path)) as running:
        inner = running.engine.engine
        assert isinstance(inner, FastEngine)
        good = await say(running.uri, TEXT)
        await running.server._cache.clear()
        poison = Poison(inner, slot=0, after=50)
        answer = await say(running.uri, TEXT)
        assert answer.error is not None and answer.error.code == "engine_failed"
        assert "not sound" in answer.error.text
        assert equal(answer.pcm, good.pcm[: len(answer.pcm)]) and len(answer.pcm) < len(good.pcm)
        poison.cure()
        assert equal((await say(running.uri, TEXT)).pcm, good.pcm)
        assert running.outcomes == {"ok": 2, "engine_failed": 1}
        # where it goes on, the model is loaded again
        poison = Poison(inner, slot=0, after=0)
        for _ in range(3):
            assert (await say(running.uri, "Once more, and again.")).error is not None
        worker = running.server.speech.worker
        assert worker is not None
        await eventually(lambda: worker.stats.reloads == 1)
        assert_whole(await say(running.uri, "Once more, and again."))


@pytest.fixture
async def sleepy(
    monkeypatch: pytest.MonkeyPatch, tiny_dir: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Any:
    def make(_config: Config) -> Engine:
        return engine_of(tiny_dir, "int8")

    settings = {
        "data_dir": str(tmp_path),
        "engine.unload_after_s": 0.3,
        "engine.when_unloaded": request.param,
        "cache.enabled": False,
    }
    async with running_server(monkeypatch, make, **settings) as running:
        yield running


async def asleep(running: RunningServer) -> None:
    await eventually(lambda: running.server.speech.asleep and running.server.speech.worker is None)


@pytest.mark.parametrize("sleepy", ["wait"], indirect=True)
async def test_an_idle_model_is_unloaded_and_comes_back(sleepy: RunningServer) -> None:
    before = await say(sleepy.uri, TEXT)
    await asleep(sleepy)
    assert len((await describe(sleepy.uri)).tts[0].voices) == 10
    assert sleepy.server.status.health().status == "ok"
    again = await say(sleepy.uri, TEXT)
    assert equal(again.pcm, before.pcm)
    assert len(sleepy.engines) == 2
    await asleep(sleepy)
    # several at once wake it once
    answers = await asyncio.gather(*(say(sleepy.uri, TEXT) for _ in range(3)))
    assert all(equal(answer.pcm, before.pcm) for answer in answers)
    assert len(sleepy.engines) == 3


@pytest.mark.parametrize("sleepy", ["wait"], indirect=True)
async def test_collections_do_not_walk_through_a_loaded_model(sleepy: RunningServer) -> None:
    """A full one held every thread up for 140 ms; once unloaded, nothing of it may be kept."""
    await say(sleepy.uri, TEXT)
    assert gc.get_freeze_count() > 50_000
    inner = sleepy.engine.engine
    assert isinstance(inner, FastEngine)
    gone = weakref.ref(inner._gpt)
    del inner
    sleepy.engines.clear()
    await asleep(sleepy)
    await eventually(lambda: gc.get_freeze_count() == 0)
    gc.collect()
    assert gone() is None


def test_what_is_exempt_from_collection_does_not_put_it_off() -> None:
    """Garbage piled up until there was a quarter as much of it as of the model's objects."""
    model = [[number] for number in range(600_000)]
    settle()
    try:
        before = gc.get_stats()[2]["collections"]
        alive: deque[list[Any]] = deque(maxlen=2000)
        for _ in range(120_000):
            cycle: list[Any] = []
            cycle.append(cycle)
            # old when it becomes garbage, so that nothing but a full collection finds it
            alive.append(cycle)
        assert gc.get_stats()[2]["collections"] > before
    finally:
        del model
        unsettle()


async def test_a_connection_leaves_nothing_to_the_collector(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each left its tasks, and one that hung up all audio that was made for it."""
    async with running_server(
        monkeypatch, lambda _config: engine_of(tiny_dir), data_dir=str(tmp_path)
    ) as running:
        gc.collect()
        gc.disable()
        try:
            assert_whole(await say(running.uri, TEXT))
            await _hang_up(running, TEXT + " And this is new.")
            await eventually(lambda: running.outcomes.get("gone") == 1)
            await eventually(lambda: not _alive(Connection) and not _alive(Flight))
        finally:
            gc.enable()


async def _hang_up(running: RunningServer, text: str) -> None:
    """Resets the connection in the middle of the audio."""
    async with AsyncClient.from_uri(running.uri) as client:
        running.engine.before_burst = lambda count: running.engine.gate.clear()
        await client.write_event(Synthesize(text).event())
        while (event := await client.read_event()) is not None and event.type != "audio-chunk":
            pass
        assert event is not None
        assert client._writer is not None
        client._writer.transport.abort()
    running.engine.before_burst = lambda count: None
    running.engine.gate.set()


def _alive(kind: type) -> int:
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


@pytest.mark.parametrize("sleepy", ["fallback"], indirect=True)
async def test_meanwhile_the_fallback_voice_speaks(sleepy: RunningServer) -> None:
    before = await say(sleepy.uri, TEXT)
    await asleep(sleepy)
    bridged = await say(sleepy.uri, TEXT)
    assert_whole(bridged)
    assert not equal(bridged.pcm, before.pcm) and loudness(bridged.pcm) > 0.01
    await eventually(lambda: sleepy.server.speech.worker is not None)
    assert equal((await say(sleepy.uri, TEXT)).pcm, before.pcm)


@pytest.mark.parametrize("sleepy", ["wait"], indirect=True)
async def test_a_model_that_speaks_is_not_unloaded(sleepy: RunningServer) -> None:
    """However long the listener takes."""
    hold = asyncio.Event()
    heard = bytearray()

    async def slow(pcm: bytes) -> None:
        heard.extend(pcm)
        await hold.wait()

    speech = sleepy.server.speech
    task = asyncio.create_task(speech.speak(whole(TEXT), sleepy.server._voices.default, slow))
    await eventually(lambda: bool(heard))
    worker = speech.worker
    assert worker is not None
    await eventually(lambda: asyncio.get_running_loop().time() > worker.used_at + 0.6)
    assert speech.worker is worker and not speech.asleep
    hold.set()
    await task
    await asleep(sleepy)


async def test_one_address_cannot_have_all_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "data_dir": str(tmp_path),
        "model.download": False,
        "server.max_connections_per_address": 3,
    }
    async with running_server(monkeypatch, None, **settings) as running:
        clients = [AsyncClient.from_uri(running.uri) for _ in range(3)]
        for client in clients:
            await client.connect()
        await eventually(lambda: len(running.server._connections) == 3)
        for _ in range(5):
            async with AsyncClient.from_uri(running.uri) as extra:
                event = await extra.read_event()
                assert event is not None and Error.from_event(event).code == "busy"
        # one line for all of it
        assert caplog.text.count("refusing connections of 127.0.0.1") == 1
        await clients.pop().disconnect()
        await eventually(lambda: len(running.server._connections) == 2)
        assert len((await describe(running.uri)).tts[0].voices) == 10
        for client in clients:
            await client.disconnect()


async def test_the_log_as_json(tiny_dir: Path, tmp_path: Path) -> None:
    arguments = ("--model-dir", str(tiny_dir), "--log-format", "json")
    with ServerProcess(tmp_path, *arguments, "--set", "log.slow_s=0.000001") as server:
        server.wait_ready()
        await say(server.uri, TEXT)
        server.wait_for('"slow"')
        lines = [json.loads(line) for line in server.lines if line.startswith("{")]
    (request,) = [line for line in lines if "outcome" in line]
    assert request["outcome"] == "ok" and request["voice"] == "seed-2" and request["audio_s"] > 1
    assert {"time", "level", "logger", "message"} <= set(request)
    (slow,) = [line for line in lines if "slow" in line]
    assert slow["level"] == "WARNING"
    assert set(slow["slow"]) == {"front end", "queue", "prefill", "decode", "codec", "listener"}
    assert slow["slow"]["decode"] > 0 and slow["slow"]["codec"] > 0
    assert "kitchen" not in json.dumps(lines)


def test_a_json_line_holds_an_exception() -> None:
    try:
        raise EngineFailed("boom")
    except EngineFailed as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "bad %s", ("thing",), info)
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "bad thing" and "EngineFailed: boom" in line["exception"]
