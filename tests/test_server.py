"""The server as its clients see it: real TCP, the tiny checkpoint, real engines."""

import asyncio
import errno
import itertools
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wyoming.client import AsyncClient
from wyoming.info import Describe
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

from wyoming_chattts import worker as worker_module
from wyoming_chattts.config import Config, EngineConfig, SamplingConfig, StreamConfig
from wyoming_chattts.engine.base import Engine, Prompt
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.fast import FastEngine
from wyoming_chattts.speech import Speech
from wyoming_chattts.voices import Voices
from wyoming_chattts.worker import Job

from .harness import (
    WatchedEngine,
    assert_whole,
    collect,
    describe,
    equal,
    eventually,
    loudness,
    running_server,
    same_audio,
    say,
    say_streamed,
)

MakeEngine = Callable[[Config], Engine]

LONG = " ".join(
    f"The {n} part of a rather long announcement is about the weather and the lights."
    for n in "first second third fourth fifth sixth seventh eighth ninth tenth last".split()
)


@pytest.fixture(scope="module")
def shared_engine(tiny_dir: Path) -> FastEngine:
    engine = FastEngine(
        open_checkpoint(tiny_dir), EngineConfig(slots=3), SamplingConfig(), StreamConfig()
    )
    engine.warm_up()
    return engine


@pytest.fixture
def make_engine(shared_engine: FastEngine) -> MakeEngine:
    def make(_config: Config) -> Engine:
        shared_engine.reset()
        return shared_engine

    return make


@pytest.mark.parametrize(
    "text",
    ["Good morning, the kitchen light is on.", "早上好，今天天气不错。", "Set 客厅 to twenty two."],
)
async def test_plain_requests(
    text: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        answer = await say(running.uri, text)
        assert_whole(answer)
        assert len(answer.pcm) > 24_000
        assert 0.005 < loudness(answer.pcm) < 0.5
        again = await say(running.uri, text)
        assert equal(again.pcm, answer.pcm)
        assert running.outcomes == {"ok": 2}


async def test_a_streamed_request_ignores_the_whole_text_repeated_in_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        text = "Good morning. It is seven thirty."
        streamed = await say_streamed(running.uri, ["Good mor", "ning. It ", "is seven thirty."])
        plain = await say(running.uri, text)
        assert_whole(streamed, streamed=True)
        assert equal(streamed.pcm, plain.pcm)


async def test_where_a_text_is_cut_does_not_change_its_audio(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "3.5°C, Dr. Li. 早上！OK."
    async with running_server(
        monkeypatch,
        make_engine,
        data_dir=str(tmp_path),
        **{"cache.enabled": False, "text.flush_ms": 0},
    ) as running:
        whole = await say_streamed(running.uri, [text])
        assert_whole(whole, streamed=True)
        for cut in range(1, len(text)):
            answer = await say_streamed(running.uri, [text[:cut], text[cut:]])
            assert same_audio(answer.pcm, whole.pcm), f"cut at {cut}"


async def test_audio_leaves_before_the_segment_is_made(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        engine = running.engine
        first_at: list[int] = []
        async with AsyncClient.from_uri(running.uri) as client:
            await client.write_event(Synthesize("A sentence of sixty steps or so.").event())
            while (event := await client.read_event()) is not None and event.type != "audio-stop":
                if event.type == "audio-chunk" and not first_at:
                    first_at.append(engine.bursts)
        # 8 steps of the first chunk and 16 of look-ahead are 3 bursts of 8 steps (one more to
        # notice); the whole takes 10
        assert first_at[0] <= 5 < engine.bursts


@pytest.mark.parametrize("text", ["", "   ", "😀😀", "...", "**", "[Stts][spk_emb]", "\ud800"])
async def test_a_text_with_nothing_to_say_gets_a_short_silence(
    text: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        if text == "\ud800":
            reader, writer = await asyncio.open_connection("127.0.0.1", _port(running.uri))
            writer.write(b'{"type": "synthesize", "data": {"text": "\\ud800"}}\n')
            line = await asyncio.wait_for(reader.readline(), 10)
            assert b"audio-start" in line
            writer.close()
            return
        answer = await say(running.uri, text)
        assert_whole(answer)
        assert equal(answer.pcm, bytes(4800))


async def test_two_clients_with_one_segment_share_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        running.engine.gate.clear()
        first = asyncio.create_task(say(running.uri, "The same sentence for both."))
        await eventually(lambda: len(running.engine.starts) == 1)
        second = asyncio.create_task(say(running.uri, "The same sentence for both."))
        await eventually(lambda: running.server.speech.active == 2)
        running.engine.gate.set()
        answers = await asyncio.gather(first, second)
        assert equal(answers[0].pcm, answers[1].pcm)
        assert len(running.engine.starts) == 1


async def test_a_client_that_goes_stops_its_work_and_no_other(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"cache.enabled": False}
    ) as running:
        alone = await say(running.uri, "Another sentence that goes on.")
        engine, worker = running.engine, running.server.speech.worker
        assert worker is not None
        engine.starts.clear()
        leaver = AsyncClient.from_uri(running.uri)
        await leaver.connect()
        await leaver.write_event(Synthesize(LONG).event())
        await eventually(lambda: len(engine.starts) >= 1)
        other = asyncio.create_task(say(running.uri, "Another sentence that goes on."))
        await eventually(lambda: any("Another" in p.text for p in engine.starts))
        engine.gate.clear()
        await leaver.disconnect()
        await eventually(lambda: running.server.speech.active == 1)
        begun = len(engine.starts)
        engine.gate.set()
        assert same_audio((await other).pcm, alone.pcm)
        await eventually(lambda: worker.running == 0 and worker.pending == 0)
        # nothing of the long text was begun after its client had gone
        assert len(engine.starts) == begun
        assert running.outcomes == {"ok": 2, "gone": 1}


async def test_a_full_queue_answers_busy_at_once(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"queue.max_pending": 2}
    ) as running:
        worker = running.server.speech.worker
        assert worker is not None
        running.engine.gate.clear()
        waiting = [asyncio.create_task(say(running.uri, "Sentence number one."))]
        await eventually(lambda: worker.running == 1)
        for text in ("Sentence number two.", "Sentence number three."):
            waiting.append(asyncio.create_task(say(running.uri, text)))
        await eventually(lambda: worker.pending == 2)
        refused = await say(running.uri, "One too many.")
        assert refused.types == ["error"]
        assert refused.error is not None and refused.error.code == "busy"
        assert refused.total_s < 1.0
        running.engine.gate.set()
        for answer in await asyncio.gather(*waiting):
            assert_whole(answer)


async def test_first_audio_has_a_deadline(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"deadline.first_audio_s": 0.2}
    ) as running:
        running.engine.gate.clear()
        answer = await say(running.uri, "This will be late.")
        assert answer.error is not None and answer.error.code == "timeout"
        assert "audio-stop" not in answer.types
        running.engine.gate.set()
        assert_whole(await say(running.uri, "This is in time."))


async def test_the_whole_request_has_a_deadline(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"deadline.total_s": 2.0}
    ) as running:
        # soon at first, and then not in time
        running.engine.before_burst = lambda count: time.sleep(0.3 if count > 6 else 0.0)
        answer = await say(running.uri, LONG)
        assert answer.pcm
        assert answer.types[-1] == "error"
        assert answer.error is not None and answer.error.code == "timeout"
        # the engine is the next test's, too
        await eventually(lambda: bool(running.engine.stops))


@pytest.mark.parametrize("burst", [1, 2, 4, 9])
async def test_an_engine_that_raises_fails_its_requests_and_works_again(
    burst: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"cache.enabled": False}
    ) as running:
        text = "A sentence of sixty steps or so."
        good = await say(running.uri, text)
        running.engine.bursts = 0

        def fail(count: int) -> None:
            if count == burst:
                raise RuntimeError("a fault for the test")

        running.engine.before_burst = fail
        answer = await say(running.uri, text)
        assert answer.types[-1] == "error" and "audio-stop" not in answer.types
        assert answer.error is not None and answer.error.code == "engine_failed"
        assert running.engine.resets == 1
        # what was played before the fault was right
        assert same_audio(good.pcm[: len(answer.pcm)], answer.pcm)
        assert same_audio((await say(running.uri, text)).pcm, good.pcm)


async def test_repeated_failure_reloads_the_model(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"worker.reload_after_failures": 2}
    ) as running:

        def fail(_count: int) -> None:
            raise RuntimeError("a fault for the test")

        running.engine.before_burst = fail
        for _ in range(2):
            answer = await say(running.uri, "This will fail.")
            assert answer.error is not None and answer.error.code == "engine_failed"
        await eventually(lambda: len(running.engines) == 2)
        assert_whole(await say(running.uri, "This will work."))


class FailsAtFirst:
    """Raises at the first of its calls; `call` is what the others go to."""

    def __init__(self, call: Callable[..., Any], error: Exception) -> None:
        self._call, self._error, self.calls = call, error, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise self._error
        return self._call(*args)


async def test_a_model_that_fails_at_its_first_warm_up_is_loaded_again(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warm_up = FailsAtFirst(WatchedEngine.warm_up, RuntimeError("out of memory, for the test"))
    monkeypatch.setattr(WatchedEngine, "warm_up", lambda engine: warm_up(engine))
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"model.retry_min_s": 0.01}
    ) as running:
        assert [engine.closed for engine in running.engines] == [True, False]
        assert_whole(await say(running.uri, "The second try is warm."))


@pytest.mark.parametrize("step", [(Speech, "prepare"), (Voices, "resolve")])
async def test_a_start_that_fails_once_is_tried_again(
    step: tuple[type, str],
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # for a moment the process may be without descriptors, memory or threads
    owner, name = step
    call = FailsAtFirst(getattr(owner, name), OSError(errno.EMFILE, "a fault for the test"))
    monkeypatch.setattr(owner, name, lambda *args: call(*args))
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"model.retry_min_s": 0.01}
    ) as running:
        assert call.calls >= 2 and len(running.engines) == 1
        assert_whole(await say(running.uri, "It starts all the same."))


async def test_a_device_lost_while_loading_ends_the_server_with_status_70(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch,
        make_engine,
        data_dir=str(tmp_path),
        **{"engine.unload_after_s": 0.05, "model.retry_min_s": 0.05},
    ) as running:
        await eventually(lambda: running.server.speech.asleep)
        lost = RuntimeError("CUDA error: unknown error")
        monkeypatch.setattr(WatchedEngine, "warm_up", FailsAtFirst(lambda: None, lost))
        await say(running.uri, "This one wakes the model.")
        assert await asyncio.wait_for(asyncio.shield(running.task), 30) == 70


async def test_a_reload_that_hangs_ends_the_server_with_status_70(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_module, "_RELOAD_S", 0.3)
    made, gate = itertools.count(), threading.Event()

    def make(config: Config) -> Engine:
        if next(made):
            gate.wait(30)
        return make_engine(config)

    async with running_server(
        monkeypatch, make, data_dir=str(tmp_path), **{"worker.reload_after_failures": 1}
    ) as running:

        def fail(_count: int) -> None:
            raise RuntimeError("a fault for the test")

        running.engine.before_burst = fail
        answer = await say(running.uri, "This will fail.")
        assert answer.error is not None and answer.error.code == "engine_failed"
        assert await asyncio.wait_for(asyncio.shield(running.task), 10) == 70
        gate.set()


async def test_a_lost_device_ends_the_server_with_status_70(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:

        def fail(_count: int) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        running.engine.before_burst = fail
        answer = await say(running.uri, "This is the last.")
        assert answer.error is not None and answer.error.code == "engine_failed"
        assert await asyncio.wait_for(asyncio.shield(running.task), 30) == 70


async def test_a_hung_burst_ends_the_server_with_status_70(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"worker.stall_s": 0.3}
    ) as running:
        running.engine.gate.clear()
        answer = await say(running.uri, "This will hang.")
        assert answer.error is not None and answer.error.code == "engine_failed"
        assert await asyncio.wait_for(asyncio.shield(running.task), 30) == 70


async def test_describe_and_ping_are_answered_while_the_engine_works(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"cache.enabled": False}
    ) as running:
        await describe(running.uri)
        speaking = [asyncio.create_task(say(running.uri, LONG)) for _ in range(2)]
        await eventually(lambda: running.engine.bursts > 5)
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            info = await describe(running.uri)
            times.append(time.perf_counter() - begin)
        assert not all(task.done() for task in speaking)
        assert info.tts[0].supports_synthesize_streaming
        # the promise is 50 ms; the client and asyncio's debug mode take their part of the same loop
        assert sorted(times)[5] < 0.05
        async with AsyncClient.from_uri(running.uri) as client:
            await client.write_event(Synthesize("One more sentence.").event())
            await client.write_event(Ping(text="here").event())
            seen = []
            while (event := await client.read_event()) is not None:
                seen.append(event)
                if event.type == "audio-stop":
                    break
            pong = next(e for e in seen if Pong.is_type(e.type))
            assert Pong.from_event(pong).text == "here"
            assert seen.index(pong) < len(seen) - 2
        for task in speaking:
            task.cancel()
        await asyncio.gather(*speaking, return_exceptions=True)


async def test_voices_are_listed_and_unknown_ones_speak_with_the_default(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_server(
        monkeypatch,
        make_engine,
        data_dir=str(tmp_path),
        **{"voices.custom": {"kitchen": {"seed": 7, "description": "of the kitchen"}}},
    ) as running:
        info = await describe(running.uri)
        voices = {voice.name: voice for voice in info.tts[0].voices}
        assert voices["kitchen"].description == "of the kitchen"
        assert voices["kitchen"].languages == ["en", "zh"]
        default = await say(running.uri, "Voice test.")
        kitchen = await say(running.uri, "Voice test.", "kitchen")
        unknown = await say(running.uri, "Voice test.", "gone")
        assert not equal(kitchen.pcm, default.pcm)
        assert equal(unknown.pcm, default.pcm)
        assert "there is no voice 'gone'" in caplog.text


async def test_texts_have_a_limit(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"text.max_chars": 30}
    ) as running:
        long = "Twenty characters. Then more than thirty."
        for answer in (await say(running.uri, long), await say_streamed(running.uri, list(long))):
            assert answer.error is not None and answer.error.code == "text_too_long"
            assert "audio-stop" not in answer.types


async def test_a_long_text_is_cut_where_that_is_set(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch,
        make_engine,
        data_dir=str(tmp_path),
        **{"text.max_chars": 18, "text.truncate": True},
    ) as running:
        text = "Twenty characters. Then more."
        plain = await say(running.uri, text)
        streamed = await say_streamed(running.uri, list(text))
        assert_whole(plain)
        assert_whole(streamed, streamed=True)
        assert equal(plain.pcm, streamed.pcm)
        assert equal(plain.pcm, (await say(running.uri, "Twenty characters.")).pcm)


async def test_the_start_of_a_stream_is_spoken_before_its_end(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_server(
            monkeypatch, make_engine, data_dir=str(tmp_path), **{"text.flush_ms": 0}
        ) as running,
        AsyncClient.from_uri(running.uri) as client,
    ):
        await client.write_event(SynthesizeStart().event())
        await client.write_event(SynthesizeChunk("The first sentence is here. And ").event())
        while (event := await client.read_event()) is not None and event.type != "audio-chunk":
            assert event.type == "audio-start"
        await client.write_event(SynthesizeChunk("so is the second.").event())
        await client.write_event(SynthesizeStop().event())
        answer = await collect(client, streamed=True)
        assert answer.types[-2:] == ["audio-stop", "synthesize-stopped"]


async def test_a_stream_that_pauses_is_spoken_so_far(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with (
        running_server(
            monkeypatch, make_engine, data_dir=str(tmp_path), **{"text.flush_ms": 50}
        ) as running,
        AsyncClient.from_uri(running.uri) as client,
    ):
        await client.write_event(SynthesizeStart().event())
        await client.write_event(SynthesizeChunk("No end in sight").event())
        event = await asyncio.wait_for(client.read_event(), 20)
        assert event is not None and event.type == "audio-start"


async def test_several_requests_on_one_connection_come_in_order(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        alone = [await say(running.uri, text) for text in ("First one.", "And a second.")]
        async with AsyncClient.from_uri(running.uri) as client:
            for text in ("First one.", "And a second."):
                await client.write_event(Synthesize(text).event())
            answers = [await collect(client, streamed=False) for _ in range(2)]
            assert [a.pcm for a in answers] == [a.pcm for a in alone]
            await client.write_event(Describe().event())
            event = await client.read_event()
            assert event is not None and event.type == "info"


@pytest.mark.parametrize("granularity", ["audio", "mel"])
async def test_a_repeated_segment_comes_from_the_cache(
    granularity: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"cache.granularity": granularity}
    ) as running:
        first = await say(running.uri, "A sentence to remember.")
        await eventually(lambda: not running.server.speech.flights._background)
        steps = running.engine.bursts
        second = await say(running.uri, "A sentence to remember.")
        assert running.engine.bursts == steps
        if granularity == "audio":
            assert equal(second.pcm, first.pcm)
        else:
            # stored as fp16 mel frames, and vocoded whole
            assert abs(len(second.pcm) - len(first.pcm)) <= 4800
            assert loudness(second.pcm) == pytest.approx(loudness(first.pcm), rel=0.05)


@pytest.mark.parametrize("fault", ["junk", "deleted", "file in its place", "locked"])
async def test_a_broken_cache_costs_speed_and_never_speech(
    fault: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        first = await say(running.uri, "A sentence to remember.")
        await eventually(lambda: not running.server.speech.flights._background)
        folder = tmp_path / "cache"
        database = folder / "segments" / "cache.db"
        lock = None
        if fault == "junk":
            for path in database.parent.glob("cache.db*"):
                path.write_bytes(b"junk" * 4000)
        elif fault == "locked":
            lock = sqlite3.connect(database, isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
        else:
            shutil.rmtree(folder)
            if fault == "file in its place":
                folder.write_text("in the way")
        for _ in range(3):
            again = await say(running.uri, "A sentence to remember.")
            assert_whole(again)
            assert same_audio(again.pcm, first.pcm)
            assert again.total_s < 5
        if lock is not None:
            lock.close()
        assert running.outcomes == {"ok": 4}


async def test_other_languages_go_to_the_fallback_voice_and_are_not_cached(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        answer = await say(running.uri, "Good morning. Сегодня хорошая погода. 早上好。")
        assert_whole(answer)
        assert [p.text for p in running.engine.starts] == ["Good morning.", "早上好。"]
        alone = await say(running.uri, "Сегодня хорошая погода.")
        assert loudness(alone.pcm) > 0.02
        await eventually(lambda: not running.server.speech.flights._background)
        assert (await running.server._cache.stats()).entries == 2


async def test_other_languages_are_skipped_where_that_is_set_but_never_in_silence(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"fallback.languages": False}
    ) as running:
        mixed = await say(running.uri, "Good morning. Сегодня хорошая погода.")
        assert_whole(mixed)
        assert "left out" in caplog.text
        alone = await say(running.uri, "Сегодня хорошая погода.")
        assert alone.error is not None and alone.error.code == "model_unavailable"


async def test_ssml_is_read_and_its_rate_followed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = '<speak><prosody rate="fast">Hello <break time="1s"/> you.</prosody></speak>'
    async with running_server(monkeypatch, make_engine, data_dir=str(tmp_path)) as running:
        async with AsyncClient.from_uri(running.uri) as client:
            await client.write_event(Synthesize(source, text_format="ssml").event())
            plain = await collect(client, streamed=False)
            await client.write_event(SynthesizeStart(text_format="ssml").event())
            for i in range(0, len(source), 7):
                await client.write_event(SynthesizeChunk(source[i : i + 7]).event())
            await client.write_event(SynthesizeStop().event())
            streamed = await collect(client, streamed=True)
        assert_whole(plain)
        assert equal(plain.pcm, streamed.pcm)
        assert running.engine.starts[0].text == "Hello [lbreak] you."
        assert running.engine.starts[0].style.speed == 7


async def test_the_output_rate_can_be_another(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"audio.rate": 16_000}
    ) as running:
        answer = await say(running.uri, "Good morning.")
        assert answer.events[0].data["rate"] == answer.events[1].data["rate"] == 16_000
        steps = 3 * len("Goodmorning")
        assert len(answer.pcm) / 32_000 == pytest.approx((2 * steps - 1) * 256 / 24_000, abs=0.1)
        stop = next(e for e in answer.events if e.type == "audio-stop")
        assert stop.data["timestamp"] == round(len(answer.pcm) / 32)


async def test_a_voice_comes_to_the_loudness_of_the_settings(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch, make_engine, data_dir=str(tmp_path), **{"audio.loudness_lufs": -16.0}
    ) as running:
        before = await say(running.uri, LONG)
        after = await say(running.uri, LONG)
        assert loudness(after.pcm) > 1.5 * loudness(before.pcm[: 48_000 * 3])
        assert equal((await say(running.uri, LONG)).pcm, after.pcm)


async def test_a_slow_listener_costs_no_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = {"deadline.total_s": 5.0, "model.download": False, "stream.chunk_ms": 1000}
    async with running_server(monkeypatch, None, data_dir=str(tmp_path), **settings) as running:
        await eventually(lambda: running.server.speech.fallback is not None)
        text = " ".join(f"Sentence number {i} of very many of them." for i in range(110))
        whole = await say(running.uri, text)
        assert whole.types[-1] == "audio-stop"
        # more audio than the sockets between hold
        assert len(whole.pcm) > 8_000_000
        async with AsyncClient.from_uri(running.uri) as client:
            await client.write_event(Synthesize(text).event())
            await client.read_event()
            # listens to something else for longer than the deadline
            await asyncio.sleep(6)
            answer = await collect(client, streamed=False)
        assert answer.types[-1] == "audio-stop"
        assert abs(len(answer.pcm) - len(whole.pcm)) < 100_000


async def test_without_model_and_fallback_the_answer_is_model_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running_server(
        monkeypatch,
        None,
        data_dir=str(tmp_path),
        **{"fallback.enabled": False, "model.download": False},
    ) as running:
        answer = await say(running.uri, "Hello.")
        assert answer.types == ["error"]
        assert answer.error is not None and answer.error.code == "model_unavailable"


def _port(uri: str) -> int:
    return int(uri.rsplit(":", 1)[1])


async def test_a_segment_that_nobody_needs_yet_waits_for_a_listener_who_is_short(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where one slot alone keeps up, all of the machine goes to the segment that is heard; the next
    one begins once its listener has some audio ahead."""
    first = "The first of the sentences is long enough to be heard for quite a while."
    async with running_server(
        monkeypatch, make_engine, **{"cache.enabled": False, "data_dir": str(tmp_path)}
    ) as running:
        worker = running.server.speech.worker
        assert worker is not None
        at_start: list[float] = []

        def note(_prompt: Prompt) -> None:
            at_start.append(sum(job.audio_s for job in worker._running.values()))

        running.engine.before_start = note
        assert_whole(await say(running.uri, f"{first} And the second follows it."))
        assert at_start[0] == 0 and at_start[1] > 0.5
        # on a machine where one slot falls behind, only decoding side by side keeps up
        worker._alone_s, worker._alone_steps = 1e6, 100.0
        at_start.clear()
        assert_whole(await say(running.uri, f"{first} And the third follows it."))
        assert at_start[:2] == [0, 0]


async def test_what_waits_of_novels_does_not_fill_the_queue(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The queue counts requests, not their segments."""
    async with running_server(
        monkeypatch,
        make_engine,
        **{"cache.enabled": False, "data_dir": str(tmp_path), "queue.max_pending": 3},
    ) as running:
        worker, engine = running.server.speech.worker, running.engine
        assert worker is not None
        engine.gate.clear()
        readers = []
        for subject in ("garden", "kitchen", "heating"):
            novel = LONG.replace("weather", subject)
            readers.append(asyncio.create_task(say(running.uri, novel)))
            await eventually(lambda: worker.running == 1)
        # the first one is being begun, two wait; so do further segments of all
        await eventually(lambda: len(worker._pending) > 6)
        assert worker.pending == 2
        word = asyncio.create_task(say(running.uri, "Hello there."))
        await eventually(lambda: worker.pending == 3 or word.done())
        refused = await say(running.uri, "Good morning.")
        assert refused.error is not None and refused.error.code == "busy"
        engine.gate.set()
        assert_whole(await word)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await eventually(lambda: not worker.running)


@pytest.mark.parametrize("novels", [2, 3, 6])
async def test_a_word_is_said_next_however_late_novels_are(
    novels: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While a slot is free a word begins with the next burst, else with the next slot."""
    monkeypatch.setattr(worker_module, "_MUCH_S", 1.0)
    async with running_server(
        monkeypatch, make_engine, **{"cache.enabled": False, "data_dir": str(tmp_path)}
    ) as running:
        worker, engine = running.server.speech.worker, running.engine
        assert worker is not None
        # slower than playing, so that all of the novels is overdue
        engine.before_burst = lambda _count: time.sleep(0.25)
        began: dict[int, tuple[int, int]] = {}
        waited: list[tuple[int, int]] = []
        submit = worker.submit

        def note_submit(*args: Any, **kwargs: Any) -> Job:
            job = submit(*args, **kwargs)
            began[id(job.prompt)] = (engine.bursts, len(engine.starts))
            return job

        def note_start(prompt: Prompt) -> None:
            if len(prompt.text) < 20:
                bursts, starts = began[id(prompt)]
                waited.append((engine.bursts - bursts, len(engine.starts) - starts))

        def late() -> bool:
            """Whether each novel was heard a while, and waits for more than it has."""
            now = asyncio.get_running_loop().time()
            late = {j.listener for j in worker._pending if j.due < now}
            return sum(listener.audio_s > 1.0 for listener in late) == novels

        monkeypatch.setattr(worker, "submit", note_submit)
        engine.before_start = note_start
        readers = [
            asyncio.create_task(say(running.uri, LONG.replace("weather", subject)))
            for subject in ("garden", "kitchen", "heating", "music", "window", "hall")[:novels]
        ]
        await eventually(late)
        assert_whole(await say(running.uri, "Hello there."))
        ((bursts, starts),) = waited
        assert starts == 1
        if novels < worker.info.slots:
            assert bursts <= 1
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        engine.before_burst = lambda _count: None
        await eventually(lambda: not worker.running)
