"""espeak-ng in a process of its own: it may crash, hang or be killed, and the server speaks on."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from wyoming_chattts.config import FallbackConfig
from wyoming_chattts.engine.base import End, Prompt, Sampling, SlotOutput
from wyoming_chattts.engine.espeak import Espeak
from wyoming_chattts.engine.fallback import FallbackEngine, without_signs
from wyoming_chattts.errors import EngineFailed

CRASHES: list[list[str]] = json.loads(
    (Path(__file__).parent.parent / "fuzz" / "espeak.json").read_text(encoding="utf-8")
)
"""Languages and texts that espeak-ng 1.52.0 crashes at."""


@pytest.fixture
def espeak() -> Iterator[Espeak]:
    espeak = Espeak()
    yield espeak
    espeak.close()


@pytest.fixture
def engine() -> Iterator[FallbackEngine]:
    engine = FallbackEngine(FallbackConfig())
    yield engine
    engine.close()


def _speak(engine: FallbackEngine, *prompts: Prompt) -> list[SlotOutput]:
    for slot, prompt in enumerate(prompts):
        engine.start(slot, prompt, Sampling())
    return engine.burst(8)


@pytest.mark.parametrize(("language", "text"), CRASHES, ids=range(len(CRASHES)))
def test_a_text_that_espeak_crashes_at_is_spoken_without_its_signs(
    engine: FallbackEngine, language: str, text: str
) -> None:
    crash, other = _speak(engine, Prompt(text, language=language), Prompt("The light is on."))
    assert crash.end in (End.COMPLETE, End.EMPTY)
    assert other.end is End.COMPLETE and other.audio.size > 12_000


def test_some_text_does_crash_espeak(espeak: Espeak) -> None:
    language, text = CRASHES[0]
    with pytest.raises(EngineFailed, match="SIG"):
        espeak.speak(text, language, 170)
    assert espeak.speak("The light is on.", "en-us", 170).size > 12_000


def test_a_killed_process_is_started_again(engine: FallbackEngine) -> None:
    before = _speak(engine, Prompt("The light is on."))[0].audio.size
    child = engine._espeak._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    after = _speak(engine, Prompt("The light is on."))[0]
    assert after.end is End.COMPLETE and abs(after.audio.size - before) < 1_000


def test_the_process_outlives_signals_that_are_for_the_server(espeak: Espeak) -> None:
    espeak.speak("a", "en-us", 170)
    child = espeak._child
    assert child is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child.pid, number)
    espeak.speak("b", "en-us", 170)
    assert espeak._child is child
    espeak.close()
    assert child.returncode == 0


def test_a_text_cannot_give_commands(espeak: Espeak) -> None:
    # to espeak-ng, "\x01" begins one: here a speed of 80 words a minute
    plain = espeak.speak("The light 80S is on and on and on.", "en-us", 300)
    command = espeak.speak("The light \x0180S is on and on and on.", "en-us", 300)
    assert command.size == pytest.approx(plain.size, rel=0.1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_a_text_that_hangs_fails_in_time(tmp_path: Path) -> None:
    source, library = tmp_path / "hang.cpp", tmp_path / "hang.so"
    source.write_text(
        'extern "C" {\n'
        "int espeak_Initialize(int, int, const char *, int) { return 22050; }\n"
        "void espeak_SetSynthCallback(void *) {}\n"
        "int espeak_SetVoiceByName(const char *) { return 0; }\n"
        "int espeak_SetParameter(int, int, int) { return 0; }\n"
        "int espeak_Synchronize() { return 0; }\n"
        "int espeak_Synth(...) { for (volatile int i = 0;; i = i + 1) {} }\n"
        "}\n"
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    espeak = Espeak(str(library), limit_s=1)
    with pytest.raises(EngineFailed, match="SIGALRM"):
        espeak.speak("a", "en-us", 170)


def test_a_library_that_is_not_there_is_said(tmp_path: Path) -> None:
    espeak = Espeak(str(tmp_path / "none.so"))
    with pytest.raises(EngineFailed, match="ended with status 1"):
        espeak.speak("a", "en-us", 170)
    assert espeak._child is None


def test_what_espeak_can_be_trusted_with() -> None:
    assert without_signs("It's 5 °C ☃ (cold)!") == "It's 5 C cold !"
    assert without_signs("सुप्रभात") == "सुप्रभात"
    assert without_signs("a" + "\u0301" * 9 + "b") == "a\u0301\u0301\u0301b"
    assert without_signs("x" * 100) == " ".join(["x" * 40, "x" * 40, "x" * 20])
