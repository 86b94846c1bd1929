"""The server as a process of its own: start, fallback voice, download, restart, signals."""

import asyncio
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wyoming.client import AsyncClient
from wyoming.tts import Synthesize

from wyoming_chattts.engine.synthetic import synthesize_checkpoint

from .fake_hub import fake_hub
from .harness import (
    ServerProcess,
    assert_whole,
    collect,
    describe,
    equal,
    loudness,
    say,
    say_streamed,
)

TEXT = "Good morning, the kitchen light is on."


async def test_describe_is_answered_while_the_model_loads(tiny_dir: Path, tmp_path: Path) -> None:
    begin = time.perf_counter()
    with ServerProcess(tmp_path, "--model-dir", str(tiny_dir)) as server:
        assert (await describe(server.uri)).tts[0].voices
        answered = time.perf_counter() - begin
        slowest = 0.0
        while not any("speaking with ChatTTS" in line for line in server.lines):
            start = time.perf_counter()
            await describe(server.uri)
            slowest = max(slowest, time.perf_counter() - start)
        assert answered < 10
        # Home Assistant gives up after 5 s
        assert slowest < 2.5
        assert server.stop() == 0


async def test_speech_at_once_with_the_fallback_voice_then_with_the_model(
    tiny_dir: Path, tmp_path: Path
) -> None:
    """No weights on disk: espeak speaks; the weights come from a hub; the engine is swapped in
    without a request being dropped."""
    with fake_hub(tiny_dir) as hub:
        hub.gate.clear()
        with ServerProcess(
            tmp_path,
            *("--set", f"model.endpoint={hub.endpoint}"),
            *("--set", "model.verify=false"),
        ) as server:
            server.wait_for("speaking with the fallback voice")
            english = await say(server.uri, TEXT)
            chinese = await say_streamed(server.uri, "早上好，今天天气不错。")
            assert_whole(english)
            assert_whole(chinese, streamed=True)
            assert loudness(english.pcm) > 0.03
            assert loudness(chinese.pcm) > 0.03
            # the marker is no file of the hub's; it says how many steps random weights are to make
            shutil.copy(tiny_dir / "synthetic.json", _model(tmp_path) / "synthetic.json")
            hub.gate.set()
            answers = []
            while not any("speaking with ChatTTS" in line for line in server.lines):
                answers.append(await say(server.uri, TEXT))
            after = await say(server.uri, TEXT)
            for answer in (*answers, after):
                assert_whole(answer)
            # the first answers are the fallback's still (espeak-ng keeps a little state)
            assert abs(len(answers[0].pcm) - len(english.pcm)) < 2000
            assert abs(len(after.pcm) - len(english.pcm)) > 2000
            assert server.stop() == 0
        # fallback audio is never in the cache: what is there now is the model's
        stats = _run(tmp_path, "cache", "stats")
        assert "entries  1\n" in stats
    assert (tmp_path / "model" / "asset" / "Embed.safetensors").is_file()


async def test_a_failing_download_says_why_and_is_tried_again(
    tiny_dir: Path, tmp_path: Path
) -> None:
    with fake_hub(tiny_dir) as hub:
        (hub_copy := tmp_path / "hub").mkdir()
        hub.folder = hub_copy
        with ServerProcess(
            tmp_path / "data",
            *("--set", f"model.endpoint={hub.endpoint}"),
            *("--set", "model.verify=false", "--set", "model.retry_min_s=0.2"),
        ) as server:
            line = server.wait_for("cannot fetch asset/gpt/config.json")
            assert "model.endpoint" in line and "model.dir" in line
            server.wait_for("trying again in 0 s")
            assert_whole(await say(server.uri, TEXT))
            shutil.copy(tiny_dir / "synthetic.json", _model(tmp_path / "data") / "synthetic.json")
            hub.folder = tiny_dir
            server.wait_ready()
            assert_whole(await say(server.uri, TEXT))


async def test_a_damaged_download_is_fetched_again(tiny_dir: Path, tmp_path: Path) -> None:
    model = _model(tmp_path)
    shutil.copytree(tiny_dir, model, dirs_exist_ok=True)
    file = model / "asset" / "Vocos.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with (
        fake_hub(tiny_dir) as hub,
        ServerProcess(
            tmp_path,
            *("--set", f"model.endpoint={hub.endpoint}", "--set", "model.retry_min_s=0.1"),
        ) as server,
    ):
        assert "Vocos.safetensors" in server.wait_for("sha256 is not that")
        server.wait_ready()
        assert len([r for r in hub.requests if r.startswith("GET")]) == 1
        assert_whole(await say(server.uri, TEXT))


async def test_a_network_that_is_not_there_is_named(tmp_path: Path) -> None:
    with ServerProcess(
        tmp_path,
        *("--set", "model.endpoint=http://127.0.0.1:9", "--set", "fallback.enabled=false"),
    ) as server:
        server.wait_for("cannot fetch")
        answer = await say(server.uri, TEXT)
        assert answer.error is not None and answer.error.code == "model_unavailable"
        assert server.stop() == 0


async def test_a_damaged_model_is_named_and_the_fallback_speaks(
    tiny_dir: Path, tmp_path: Path
) -> None:
    model = tmp_path / "broken"
    shutil.copytree(tiny_dir, model)
    with (model / "asset/Vocos.safetensors").open("r+b") as file:
        file.truncate(1000)
    with ServerProcess(tmp_path, "--model-dir", str(model)) as server:
        assert "Vocos.safetensors" in server.wait_for("truncated")
        assert_whole(await say(server.uri, TEXT))


async def test_the_cache_outlives_a_restart(tiny_dir: Path, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--model-dir", str(tiny_dir)) as server:
        server.wait_ready()
        first = await say(server.uri, TEXT)
        server.stop()
    with ServerProcess(tmp_path, "--model-dir", str(tiny_dir)) as server:
        server.wait_ready()
        second = await say(server.uri, TEXT)
        assert equal(second.pcm, first.pcm)
        assert "1 cached" in server.wait_for("ok: voice")


async def test_a_new_model_never_speaks_from_the_old_cache(tiny_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    synthesize_checkpoint(other, "tiny", 99)
    with ServerProcess(tmp_path, "--model-dir", str(tiny_dir)) as server:
        server.wait_ready()
        old = await say(server.uri, TEXT)
    with ServerProcess(tmp_path, "--model-dir", str(other)) as server:
        server.wait_ready()
        new = await say(server.uri, TEXT)
        assert "0 cached" in server.wait_for("ok: voice")
        assert not equal(new.pcm, old.pcm)


async def test_used_phrases_are_made_again_for_a_new_model(tiny_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    synthesize_checkpoint(other, "tiny", 99)
    with ServerProcess(tmp_path, "--model-dir", str(tiny_dir)) as server:
        server.wait_ready()
        for _ in range(2):
            await say(server.uri, TEXT)
        server.stop()
    with ServerProcess(tmp_path, "--model-dir", str(other)) as server:
        server.wait_for("warm-up: 1 of 1 phrases are ready")
        await say(server.uri, TEXT)
        assert "1 cached" in server.wait_for("ok: voice")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_what_is_spoken_finish(
    number: signal.Signals, tiny_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess(
        tmp_path, "--model-dir", str(tiny_dir), "--set", "cache.enabled=false"
    ) as server:
        server.wait_ready()
        whole = await say(server.uri, TEXT * 3)
        async with AsyncClient.from_uri(server.uri) as client:
            await client.write_event(Synthesize(TEXT * 3).event())
            event = await client.read_event()
            assert event is not None and event.type == "audio-start"
            server.process.send_signal(number)
            answer = await collect(client, streamed=False)
        assert answer.types[-1] == "audio-stop"
        assert equal(answer.pcm, whole.pcm)
        assert server.stop(number) == 0
        assert "stopped" in server.lines[-2], server.lines[-40:]


async def test_a_drain_ends_in_time_for_peers_that_do_not_read(
    tiny_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess(
        tmp_path, "--model-dir", str(tiny_dir), "--set", "server.drain_s=0.5"
    ) as server:
        server.wait_ready()
        port = int(server.uri.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        # far more audio than the sockets' buffers hold
        text = " ".join(f"Sentence number {i} of very many of them." for i in range(100))
        event = {"type": "synthesize", "data": {"text": text}}
        writer.write(json.dumps(event).encode() + b"\n")
        await reader.read(1)
        begin = time.perf_counter()
        assert server.stop() == 0
        assert time.perf_counter() - begin < 8
        writer.close()


async def test_without_descriptors_one_line_is_logged_and_callers_wait(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "own.yaml").write_text("seed: 5\n")
    options = {"model.download": "false", "voices.default": "own", "voices.rescan_s": "0.1"}
    settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    with ServerProcess(tmp_path, *settings) as server:
        # the last line of a start without a model
        server.wait_for("trying again in")
        pid = server.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        before = await describe(server.uri)
        assert before.tts[0].voices[0].name == "own"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
        waiting = asyncio.create_task(describe(server.uri))
        await asyncio.to_thread(server.wait_for, "no connection can be accepted now")
        await asyncio.to_thread(server.wait_for, "the voices cannot be looked at now")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert await waiting == before
        assert server.stop() == 0
        assert sum("accept" in line for line in server.lines) == 1
        assert [line for line in server.lines if "Traceback" in line or "voice 'own'" in line] == []


async def test_requests_while_stopping_are_told_so(tiny_dir: Path, tmp_path: Path) -> None:
    with ServerProcess(
        tmp_path, "--model-dir", str(tiny_dir), "--set", "cache.enabled=false"
    ) as server:
        server.wait_ready()
        async with AsyncClient.from_uri(server.uri) as client:
            text = " ".join(f"Sentence number {i} of a good many of them." for i in range(6))
            await client.write_event(Synthesize(text).event())
            await client.read_event()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("letting 1 requests finish")
            await client.write_event(Synthesize("One more.").event())
            answer = await collect(client, streamed=True)
        assert answer.error is not None and answer.error.code == "shutting_down"
        assert server.stop() == 0


async def test_the_reference_engine_speaks_through_the_same_server(
    tiny_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess(
        tmp_path, "--model-dir", str(tiny_dir), "--set", "engine.kind=reference"
    ) as server:
        assert "stock" in server.wait_for("speaking with ChatTTS")
        answers = await asyncio.gather(*(say(server.uri, TEXT) for _ in range(2)))
        for answer in answers:
            assert_whole(answer)
            assert loudness(answer.pcm) > 0.005
        # its streaming may end early or late by a chunk, but not by much
        assert 1.0 < len(answers[0].pcm) / 48_000 < 4.0
        assert server.stop() == 0


def test_the_serving_path_imports_none_of_the_reference(tiny_dir: Path, tmp_path: Path) -> None:
    """Loads the engine and speaks, then looks at `sys.modules`."""
    code = f"""
import sys
from wyoming_chattts.cli import run
assert run(["say", "Good morning. 早上好。", "-o", {str(tmp_path / "a.wav")!r},
            "--data-dir", {str(tmp_path)!r}, "--model-dir", {str(tiny_dir)!r}]) == 0
import wyoming_chattts.server
banned = {{"ChatTTS", "transformers", "torchaudio", "vocos", "numba", "requests",
           "vector_quantize_pytorch"}}
print(sorted(banned & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_command_line_loads_neither_torch_nor_aiohttp() -> None:
    code = """
import sys, wyoming_chattts.cli
print({'torch', 'aiohttp', 'wyoming'} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def _run(data_dir: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "wyoming_chattts", *arguments, "--data-dir", str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def _model(data_dir: Path) -> Path:
    folder = data_dir / "model"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
