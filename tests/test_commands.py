"""The command line as a person uses it."""

import os
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from .harness import ServerProcess


def command(
    *arguments: str, data: Path | None = None, status: int = 0, text: str | None = None
) -> str:
    """Output of a command, both streams."""
    extra = ["--data-dir", str(data)] if data else []
    done = subprocess.run(
        [sys.executable, "-m", "wyoming_chattts", *arguments, *extra],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_say_writes_a_wav_with_the_model_and_without(tiny_dir: Path, tmp_path: Path) -> None:
    for name, extra in (("fallback", []), ("model", ["--model-dir", str(tiny_dir)])):
        out = tmp_path / f"{name}.wav"
        said = command("say", "Good morning. 早上好。", "-o", str(out), *extra, data=tmp_path)
        assert ("fallback voice" in said) == (name == "fallback")
        with wave.open(str(out)) as wav:
            assert (wav.getframerate(), wav.getsampwidth(), wav.getnchannels()) == (24_000, 2, 1)
            assert wav.getnframes() > 24_000
    again = command(
        *("say", "Good morning. 早上好。", "-o", str(tmp_path / "c.wav")),
        *("--model-dir", str(tiny_dir)),
        data=tmp_path,
    )
    assert "2 from the cache" in again
    assert (tmp_path / "c.wav").read_bytes() == (tmp_path / "model.wav").read_bytes()


def test_say_reads_standard_input_and_shows_the_stages(tmp_path: Path) -> None:
    shown = command("say", "--show-text", data=tmp_path, text="**It** is 23.5°C. 现在3:05。")
    assert "segment 1 (en)" in shown and "segment 2 (zh)" in shown
    assert "twenty three point five degrees Celsius" in shown
    assert "三点零五分" in shown


def test_say_says_what_is_missing(tmp_path: Path) -> None:
    assert "--play" in command("say", "Hello.", data=tmp_path, status=2)
    refused = command(
        *("say", "Hello.", "-o", str(tmp_path / "a.wav"), "--set", "fallback.enabled=false"),
        data=tmp_path,
        status=2,
    )
    assert "model download" in refused


def test_model_synthesize_says_that_it_is_noise_and_verify_checks_it(tmp_path: Path) -> None:
    made = command("model", "synthesize", str(tmp_path / "m"), "--size", "tiny", "--seed", "3")
    assert "noise, not a voice" in made
    checked = command("model", "verify", "--model-dir", str(tmp_path / "m"), data=tmp_path)
    assert "all files are right" in checked
    (tmp_path / "m/asset/DVAE.safetensors").write_bytes(b"x")
    broken = command("model", "verify", "--model-dir", str(tmp_path / "m"), data=tmp_path, status=2)
    assert "DVAE.safetensors" in broken


def test_cache_commands(tiny_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "phrases").write_text("Good morning.\n\n早上好。\n", encoding="utf-8")
    warm = ["cache", "warm", "--file", str(tmp_path / "phrases"), "--model-dir", str(tiny_dir)]
    assert "2/2 made" in command(*warm, data=tmp_path)
    assert "2/2 known" in command(*warm, data=tmp_path)
    stats = command("cache", "stats", data=tmp_path)
    assert "entries  2" in stats
    assert "2 hits, 2 misses (50 % hit)" in stats
    assert "removed 2 entries" in command("cache", "clear", data=tmp_path)
    assert "entries  0" in command("cache", "stats", data=tmp_path)


def test_doctor_says_what_is_wrong_and_what_to_do(tiny_dir: Path, tmp_path: Path) -> None:
    bad = command("doctor", data=tmp_path, status=1)
    assert "FAIL model" in bad and "model download" in bad
    good = command("doctor", "--model-dir", str(tiny_dir), data=tmp_path)
    assert "FAIL" not in good
    assert "ok   device" in good and "ok   cache" in good


def test_voices_are_listed() -> None:
    assert "seed-2 (default)" in command("voices", "list")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "engine.devise=cpu"], "engine.devise: no such setting"),
        (["--config", "/none.yaml"], "/none.yaml"),
        (["--uri", "tcp://127.0.0.1:1:2"], "server.uri"),
    ],
)
def test_bad_settings_end_the_start_in_one_line(arguments: list[str], named: str) -> None:
    said = command("serve", *arguments, status=2)
    assert named in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "passive"}, "None")],
)
def test_threads_spin_briefly_unless_somebody_says_how(given: dict[str, str], spins: str) -> None:
    """Set before torch is loaded, which reads it once."""
    code = (
        "import os, sys; from wyoming_chattts import cli; assert 'torch' not in sys.modules;"
        "cli.run(['voices', 'list']); print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == spins


def test_health_of_a_server(tmp_path: Path) -> None:
    assert "does not answer" in command("health", "--uri", "tcp://127.0.0.1:9", status=1)
    with ServerProcess(tmp_path, "--set", "model.download=false") as server:
        assert "chattts" in command("health", "--uri", server.uri)
        port = server.uri.rsplit(":", 1)[1]
        assert "chattts" in command("health", "--uri", f"tcp://0.0.0.0:{port}")


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--set", "model.download=false") as server:
        assert "cannot listen" in command("serve", "--uri", server.uri, data=tmp_path, status=2)


def test_a_unix_socket(tmp_path: Path) -> None:
    uri = f"unix://{tmp_path}/s"
    with ServerProcess(tmp_path, "--uri", uri, "--set", "model.download=false") as server:
        assert server.uri == uri
        assert "chattts" in command("health", "--uri", uri)
        assert server.stop() == 0
    assert not (tmp_path / "s").exists()
