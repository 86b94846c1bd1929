"""Loudness: measured as BS.1770 says, brought to the target once, and never past full scale."""

from pathlib import Path

import numpy as np
import pytest

from wyoming_chattts.audio import OutputRate
from wyoming_chattts.engine.base import FloatAudio
from wyoming_chattts.loudness import (
    PEAK_LIMIT,
    Loudness,
    apply_gain,
    block_powers,
    integrated_lufs,
    true_peak,
)


def tone(hertz: float, level: float, seconds: float, phase: float = 0.0) -> FloatAudio:
    t = np.arange(round(seconds * 24_000)) / 24_000
    return (level * np.sin(2 * np.pi * hertz * t + phase)).astype(np.float32)


def pcm(audio: FloatAudio) -> bytes:
    return np.rint(audio * 32767).astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("hertz", "level_db", "expected"),
    # a full-scale 997 Hz sine in one channel is -3.01 LUFS (BS.1770); low tones weigh less, high
    # ones up to 4 dB more (the second-order high-pass at 38 Hz takes 3.96 dB at 50 Hz)
    [(997, 0, -3.01), (997, -20, -23.01), (50, -20, -27.66), (6000, -20, -19.7)],
)
def test_tones_have_the_loudness_of_the_standard(
    hertz: float, level_db: float, expected: float
) -> None:
    audio = tone(hertz, 10 ** (level_db / 20), 3)
    assert integrated_lufs(block_powers(audio)) == pytest.approx(expected, abs=0.4)


def test_silence_does_not_count() -> None:
    loud = tone(997, 0.1, 3)
    mixed = np.concatenate([loud, np.zeros(24_000 * 5, np.float32), loud])
    assert integrated_lufs(block_powers(mixed)) == pytest.approx(-23.0, abs=0.3)
    assert integrated_lufs(block_powers(np.zeros(48_000, np.float32))) == -np.inf


def test_true_peaks_lie_between_samples() -> None:
    # a quarter of the sampling rate, sampled 45 degrees off its peaks
    audio = tone(6000, 0.5, 0.5, phase=np.pi / 4)
    assert np.abs(audio).max() == pytest.approx(0.354, abs=0.01)
    assert true_peak(audio) == pytest.approx(0.5, rel=0.02)


def test_a_voice_gets_its_gain_once_and_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "loudness.json"
    loudness = Loudness(-20.0, file)
    quiet = tone(997, 0.02, 2)
    for _ in range(3):
        assert loudness.gain_db("v") == 0.0
        loudness.measure("v", quiet)
    loudness.measure("v", quiet)
    gain = loudness.gain_db("v")
    assert gain == pytest.approx(12.0)
    loudness.measure("v", tone(997, 0.5, 10))
    assert loudness.gain_db("v") == gain
    assert Loudness(-20.0, file).gain_db("v") == gain
    # another target, or a damaged file, starts afresh
    assert Loudness(-23.0, file).gain_db("v") == 0.0
    file.write_text("junk")
    assert Loudness(-20.0, file).gain_db("v") == 0.0


def test_voices_come_to_the_target(tmp_path: Path) -> None:
    loudness = Loudness(-20.0, tmp_path / "l.json")
    noise = np.random.default_rng(1).normal(0, 1, 24_000 * 8).astype(np.float32)
    for name, level in (("loud", 0.15), ("soft", 0.04)):
        audio = noise * level
        loudness.measure(name, audio)
        out = np.frombuffer(apply_gain(pcm(audio), loudness.gain_db(name)), "<i2") / 32768
        assert integrated_lufs(block_powers(out.astype(np.float32))) == pytest.approx(-20, abs=0.5)


def test_no_gain_leaves_the_audio_as_it_is() -> None:
    data = pcm(tone(440, 0.9, 0.1))
    assert apply_gain(data, 0.0) is data


def test_peaks_are_rounded_off_below_the_limit() -> None:
    out = np.frombuffer(apply_gain(pcm(tone(440, 0.9, 0.5)), 12.0), "<i2") / 32768
    assert np.abs(out).max() <= PEAK_LIMIT + 1e-4
    # and quiet parts are exact
    soft = np.frombuffer(apply_gain(pcm(tone(440, 0.1, 0.5)), 6.0), "<i2") / 32768
    assert np.abs(soft).max() == pytest.approx(0.1 * 10 ** (6 / 20), rel=0.01)


@pytest.mark.parametrize("rate", [16_000, 22_050, 48_000])
def test_another_output_rate_keeps_length_and_level(rate: int) -> None:
    converter = OutputRate(rate)
    data = pcm(tone(440, 0.5, 1.0))
    parts = [converter.convert(data[i : i + 1000]) for i in range(0, len(data), 1000)]
    out = np.frombuffer(b"".join([*parts, converter.convert(b"", last=True)]), "<i2") / 32768
    assert out.size == pytest.approx(rate, abs=2)
    assert np.sqrt((out**2).mean()) == pytest.approx(0.5 / np.sqrt(2), rel=0.02)
    assert OutputRate(24_000).convert(data) is data
