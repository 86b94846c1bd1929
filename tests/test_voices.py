"""Voices of the settings."""

from pathlib import Path
from typing import Any

import pytest

from wyoming_chattts.config import load
from wyoming_chattts.engine import speaker
from wyoming_chattts.errors import VoiceError
from wyoming_chattts.voices import BUILTIN_SEEDS, Voices


def make(**custom: dict[str, Any]) -> Voices:
    return Voices(load(environ={}, overrides={"voices.custom": custom}))


def test_builtin_voices_are_seeds() -> None:
    voices = make()
    assert [v.name for v in voices.all()] == [f"seed-{seed}" for seed in BUILTIN_SEEDS]
    voices.resolve()
    assert voices.find("seed-42").embedding == speaker.from_seed(42)


def test_custom_voices_come_from_seeds_strings_and_files(tmp_path: Path) -> None:
    text = speaker.to_string(speaker.from_seed(9))
    (tmp_path / "v.txt").write_text(text, encoding="utf-8")
    voices = make(
        a={"seed": 9, "style": {"speed": 3}, "temperature": 0.2},
        b={"embedding": text, "description": "a string"},
        c={"file": str(tmp_path / "v.txt")},
    )
    voices.resolve()
    assert {voices.find(name).embedding for name in "abc"} == {speaker.from_seed(9)}
    assert voices.find("a").style.speed == 3
    assert voices.find("a").temperature == 0.2
    assert voices.find("b").description == "a string"
    assert voices.find("b").style.speed == 5


def test_a_voice_that_cannot_be_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    voices = make(bad={"file": str(tmp_path / "none.pt")}, good={"seed": 1})
    voices.resolve()
    assert "bad" not in [v.name for v in voices.all()]
    assert "none.pt" in caplog.text
    assert voices.find("bad") is voices.default


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("two", {"seed": 1, "file": "x"}),
        ("none", {"description": "x"}),
        ("../up", {"seed": 1}),
        ("a\\b", {"seed": 1}),
        ("", {"seed": 1}),
        ("x" * 100, {"seed": 1}),
        ("line\nbreak", {"seed": 1}),
    ],
)
def test_impossible_voices_are_refused(name: str, definition: dict[str, Any]) -> None:
    with pytest.raises(VoiceError, match=r"voices\.custom"):
        make(**{name: definition})


def test_a_default_that_is_gone_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    voices = Voices(load(environ={}, overrides={"voices.default": "gone"}))
    assert voices.default.name == "seed-2"
    assert "gone" in caplog.text


def test_there_must_be_a_voice() -> None:
    with pytest.raises(VoiceError, match="there is none"):
        Voices(load(environ={}, overrides={"voices.builtin": False}))
