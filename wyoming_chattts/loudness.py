"""One loudness for all voices (ITU-R BS.1770), without pumping.

Each voice is measured as it speaks, by the power of 400 ms blocks under the K-weighting curve, with
the absolute and the relative gate. Once there are some seconds of speech its gain is worked out and
kept from then on, over restarts too: a gain that went on changing would be heard, and the same text
would not stay the same audio. Peaks that the gain would bring over the limit are rounded off.
"""

import json
import logging
import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .atomic import write_json
from .engine.base import SAMPLE_RATE, FloatAudio

_LOGGER = logging.getLogger(__name__)

_BLOCK = SAMPLE_RATE * 4 // 10
_HOP = _BLOCK // 4
_OFFSET_DB = -0.691
_ABSOLUTE_GATE = -70.0
_RELATIVE_GATE = -10.0
_ENOUGH_BLOCKS = 60
"""Gated blocks, at four to 400 ms: six seconds of speech."""
_MAX_GAIN_DB = 12.0
PEAK_LIMIT = 10 ** (-1 / 20)
"""-1 dBTP."""
_KNEE = 0.75
_OVERSAMPLING = 4


@cache
def _k_weighting() -> NDArray[np.float64]:
    """Power response of the K-weighting filter at the block's FFT frequencies.

    The two biquads of BS.1770-4, tables 1 and 2, which are given for 48 kHz.
    """
    z = np.exp(-2j * np.pi * np.fft.rfftfreq(_BLOCK, 1 / SAMPLE_RATE) / 48_000)

    def response(b: tuple[float, ...], a: tuple[float, ...]) -> NDArray[np.complex128]:
        top = b[0] + b[1] * z + b[2] * z**2
        result: NDArray[np.complex128] = top / (1 + a[0] * z + a[1] * z**2)
        return result

    shelf = response(
        (1.53512485958697, -2.69169618940638, 1.19839281085285),
        (-1.69065929318241, 0.73248077421585),
    )
    highpass = response((1.0, -2.0, 1.0), (-1.99004745483398, 0.99007225036621))
    power: NDArray[np.float64] = np.abs(shelf * highpass) ** 2
    return power


def block_powers(audio: FloatAudio) -> NDArray[np.float64]:
    """K-weighted mean squares of the 400 ms blocks of `[samples]`, each 100 ms after the last."""
    if audio.size < _BLOCK:
        return np.zeros(0)
    blocks = np.lib.stride_tricks.sliding_window_view(audio, _BLOCK)[::_HOP]
    spectrum = np.abs(np.fft.rfft(blocks, axis=1)) ** 2
    # the negative frequencies count as well
    spectrum[:, 1:-1] *= 2
    powers: NDArray[np.float64] = (spectrum * _k_weighting()).sum(axis=1) / _BLOCK**2
    return powers


def integrated_lufs(powers: NDArray[np.float64]) -> float:
    """Gated loudness of block powers; -inf for silence."""
    gated = powers[_lufs(powers) > _ABSOLUTE_GATE]
    if not gated.size:
        return -math.inf
    relative = _lufs(gated.mean()) + _RELATIVE_GATE
    return float(_lufs(gated[_lufs(gated) > relative].mean()))


def _lufs(power: NDArray[np.float64]) -> NDArray[np.float64]:
    return _OFFSET_DB + 10 * np.log10(np.maximum(power, 1e-20))


def true_peak(audio: FloatAudio) -> float:
    """Largest magnitude of `[samples]` between the samples too (four times oversampled)."""
    if not audio.size:
        return 0.0
    spectrum = np.fft.rfft(audio)
    dense = np.fft.irfft(spectrum, audio.size * _OVERSAMPLING) * _OVERSAMPLING
    return float(max(np.abs(dense).max(), np.abs(audio).max()))


@dataclass(slots=True)
class _Measured:
    powers: list[float] = field(default_factory=list)
    peak: float = 0.0
    gain_db: float | None = None


class Loudness:
    """Gains by voice. `key` is whatever makes a voice sound as it does."""

    def __init__(self, target_lufs: float | None, file: Path) -> None:
        self._target = target_lufs
        self._file = file
        self._voices: dict[str, _Measured] = {}
        if target_lufs is not None:
            self._read()

    def gain_db(self, key: str) -> float:
        """The voice's gain; 0 until it is known."""
        measured = self._voices.get(key)
        return measured.gain_db or 0.0 if measured is not None else 0.0

    def known(self, key: str) -> bool:
        """Whether there is nothing to measure any more."""
        measured = self._voices.get(key)
        return self._target is None or (measured is not None and measured.gain_db is not None)

    def measure(self, key: str, audio: FloatAudio) -> None:
        """Takes a segment's audio before any gain (blocks for about a millisecond a second)."""
        if self._target is None or self.known(key):
            return
        measured = self._voices.setdefault(key, _Measured())
        powers = block_powers(audio)
        measured.powers += powers[_lufs(powers) > _ABSOLUTE_GATE].tolist()
        measured.peak = max(measured.peak, true_peak(audio))
        if len(measured.powers) >= _ENOUGH_BLOCKS:
            loudness = integrated_lufs(np.array(measured.powers))
            wanted = self._target - loudness
            room = -20 * math.log10(max(measured.peak, 1e-6) / PEAK_LIMIT)
            # some peaks over the limit are rounded off; more than 3 dB of them would be heard
            measured.gain_db = float(np.clip(min(wanted, room + 3), -_MAX_GAIN_DB, _MAX_GAIN_DB))
            measured.powers.clear()
            _LOGGER.info("a voice is at %.1f LUFS: gain %+.1f dB", loudness, measured.gain_db)
            self._write()

    def _read(self) -> None:
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
            if known.pop("target") == self._target:
                for key, gain in known.items():
                    self._voices[key] = _Measured(gain_db=float(gain))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._voices.clear()

    def _write(self) -> None:
        known = {k: round(m.gain_db, 2) for k, m in self._voices.items() if m.gain_db is not None}
        try:
            write_json(self._file, {"target": self._target, **known})
        except OSError as error:
            _LOGGER.debug("cannot keep gains in %s: %s", self._file, error)


def apply_gain(pcm: bytes, gain_db: float) -> bytes:
    """16-bit PCM at another level, with peaks rounded off below -1 dBFS."""
    if gain_db == 0.0:
        return pcm
    audio = np.frombuffer(pcm, dtype="<i2").astype(np.float32) * (10 ** (gain_db / 20) / 32768)
    loud = np.abs(audio) > _KNEE
    if loud.any():
        over = (np.abs(audio[loud]) - _KNEE) / (PEAK_LIMIT - _KNEE)
        audio[loud] = np.sign(audio[loud]) * (_KNEE + (PEAK_LIMIT - _KNEE) * np.tanh(over))
    result: bytes = np.rint(audio * 32768).clip(-32768, 32767).astype("<i2").tobytes()
    return result
