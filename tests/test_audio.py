"""PCM: edges, level, and that nothing goes missing from the middle."""

import numpy as np
import pytest

from wyoming_chattts.audio import SegmentAudio, silence, to_pcm16
from wyoming_chattts.config import AudioConfig
from wyoming_chattts.engine.base import FloatAudio

CONFIG = AudioConfig(lead_ms=40, tail_ms=120, fade_ms=5)


def tone(seconds: float, level: float = 0.5) -> FloatAudio:
    t = np.arange(round(seconds * 24_000)) / 24_000
    return (level * np.sin(2 * np.pi * 440 * t + 0.5)).astype(np.float32)


def quiet(seconds: float) -> FloatAudio:
    return np.zeros(round(seconds * 24_000), dtype=np.float32)


def shaped(audio: FloatAudio, size: int, config: AudioConfig = CONFIG) -> np.ndarray:
    shape = SegmentAudio(config)
    pcm = b"".join(shape.push(audio[i : i + size]) for i in range(0, audio.size, size))
    pcm += shape.finish()
    return np.frombuffer(pcm, dtype="<i2").astype(float) / 32767


def test_silence_at_the_edges_is_cut_to_the_settings() -> None:
    audio = np.concatenate([quiet(0.5), tone(1.0), quiet(0.7)])
    out = shaped(audio, 5000)
    assert out.size / 24_000 == pytest.approx(0.04 + 1.0 + 0.12, abs=0.03)
    loud = np.flatnonzero(np.abs(out) > 0.01)
    assert 0.03 <= loud[0] / 24_000 <= 0.06
    assert 0.1 <= (out.size - loud[-1]) / 24_000 <= 0.15


def test_silence_in_the_middle_stays() -> None:
    audio = np.concatenate([tone(0.5), quiet(1.0), tone(0.5)])
    out = shaped(audio, 3000)
    assert out.size == audio.size
    inner = slice(200, -200)
    assert np.abs(out[inner] - audio[inner]).max() < 1e-4


@pytest.mark.parametrize("size", [1, 7, 240, 512, 4096, 100_000])
def test_the_result_does_not_depend_on_the_pieces(size: int) -> None:
    audio = np.concatenate([quiet(0.21), tone(0.3), quiet(0.15), tone(0.2), quiet(0.333)])
    if size == 1:
        audio = audio[4000:9000]
    assert np.array_equal(shaped(audio, size), shaped(audio, audio.size))


def test_the_edges_are_faded() -> None:
    out = shaped(tone(0.5), 1000)
    assert abs(out[0]) < 0.01 and abs(out[-1]) < 0.01
    assert np.abs(out[:24]).max() < 0.1
    assert out.size == 12_000


def test_sound_is_passed_on_at_once() -> None:
    shape = SegmentAudio(CONFIG)
    pushed = len(shape.push(tone(0.5))) // 2
    assert 12_000 - pushed <= 240 + 240


@pytest.mark.parametrize("audio", [quiet(0.5), quiet(0.0), tone(0.001, 0.5)])
def test_very_little_audio_is_no_trouble(audio: FloatAudio) -> None:
    out = shaped(audio, 100)
    assert out.size <= 24_000 * 0.2


def test_samples_are_clipped_and_never_wrap() -> None:
    values = np.array([2.0, -2.0, 1.0, -1.0, np.nan, 0.5], dtype=np.float32)
    pcm = np.frombuffer(to_pcm16(values), dtype="<i2")
    assert pcm.tolist() == [32767, -32768, 32767, -32767, 0, 16384]


def test_gain_is_in_decibels() -> None:
    louder = shaped(tone(0.5, 0.1), 1000, CONFIG.model_copy(update={"gain_db": 6.0}))
    assert np.abs(louder).max() == pytest.approx(0.1 * 10 ** (6 / 20), rel=0.01)


def test_silence_has_its_length() -> None:
    assert silence(100) == bytes(4800)
