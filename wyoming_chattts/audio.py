"""From the engine's float samples to what is sent: edges, level, 16-bit PCM.

`SegmentAudio` works on a stream: silence before the first sound is cut to `lead_ms`, silence after
the last to `tail_ms`, and nothing is taken out of the middle (silence is held back until it is
known whether sound follows). Samples are mono, 24 kHz.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .config import AudioConfig
from .engine.base import EMPTY_AUDIO, SAMPLE_RATE, FloatAudio

SAMPLE_WIDTH = 2
CHANNELS = 1
BYTES_PER_SECOND = SAMPLE_RATE * SAMPLE_WIDTH * CHANNELS
NOTHING_TO_SAY_MS = 100

_WINDOW = SAMPLE_RATE // 100
"""Silence is judged by 10 ms windows."""
_SILENCE_RMS = 10 ** (-50 / 20)


@dataclass(slots=True)
class SegmentAudio:
    """The audio of one segment on its way out."""

    config: AudioConfig
    gain_db: float = 0.0
    _rest: FloatAudio = field(default_factory=lambda: EMPTY_AUDIO)
    _held: list[FloatAudio] = field(default_factory=list)
    _sounding: bool = False

    def push(self, audio: FloatAudio) -> bytes:
        """Takes samples; returns the PCM that can be sent now."""
        audio = np.concatenate([self._rest, audio])
        whole = audio.size // _WINDOW * _WINDOW
        self._rest = audio[whole:]
        return self._pcm(self._release(audio[:whole].reshape(-1, _WINDOW)))

    def finish(self) -> bytes:
        """The segment's end: returns the rest, faded out."""
        last = self._rest
        self._rest = EMPTY_AUDIO
        held = np.concatenate([*self._held, last]) if self._sounding else EMPTY_AUDIO
        self._held.clear()
        if held.size and _rms(last) < _SILENCE_RMS:
            held = held[: _samples(self.config.tail_ms) + self._fade]
        return self._pcm(_fade_out(held, self._fade))

    @property
    def _fade(self) -> int:
        return _samples(self.config.fade_ms)

    def _release(self, windows: FloatAudio) -> FloatAudio:
        """The samples of windows `[n, window]` that are followed by sound, or are it."""
        loud = np.sqrt((windows**2).mean(axis=1)) >= _SILENCE_RMS
        out: list[FloatAudio] = []
        if not self._sounding:
            if not loud.any():
                self._hold(windows, _samples(self.config.lead_ms))
                return EMPTY_AUDIO
            first = int(loud.argmax())
            self._hold(windows[:first], _samples(self.config.lead_ms))
            start = np.concatenate([*self._held, windows[first]])
            out.append(_fade_in(start, self._fade))
            self._held.clear()
            self._sounding = True
            windows, loud = windows[first + 1 :], loud[first + 1 :]
        last = int(np.flatnonzero(loud)[-1]) + 1 if loud.any() else 0
        if last:
            out += [*self._held, windows[:last].reshape(-1)]
            self._held.clear()
        self._held.append(windows[last:].reshape(-1))
        # enough is held back to fade out whatever turns out to be the end
        return self._keep_fade(np.concatenate(out) if out else EMPTY_AUDIO)

    def _keep_fade(self, out: FloatAudio) -> FloatAudio:
        if out.size <= self._fade:
            if out.size:
                self._held.insert(0, out)
            return EMPTY_AUDIO
        if sum(part.size for part in self._held) < self._fade:
            split = out.size - self._fade
            self._held.insert(0, out[split:])
            return out[:split]
        return out

    def _hold(self, windows: FloatAudio, limit: int) -> None:
        held = np.concatenate([*self._held, windows.reshape(-1)])
        self._held = [held[max(0, held.size - limit) :]]

    def _pcm(self, audio: FloatAudio) -> bytes:
        return to_pcm16(audio, self.config.gain_db + self.gain_db)


def to_pcm16(audio: FloatAudio, gain_db: float = 0.0) -> bytes:
    """Little-endian 16-bit PCM, clipped; a NaN becomes silence."""
    scaled = np.nan_to_num(audio * (32767.0 * 10 ** (gain_db / 20)), nan=0.0)
    pcm: bytes = np.clip(np.rint(scaled), -32768, 32767).astype("<i2").tobytes()
    return pcm


def silence(milliseconds: float) -> bytes:
    """PCM of silence."""
    return bytes(SAMPLE_WIDTH * _samples(milliseconds))


def duration_s(pcm_bytes: int) -> float:
    """Seconds of that many bytes of PCM."""
    return pcm_bytes / BYTES_PER_SECOND


def _samples(milliseconds: float) -> int:
    return math.floor(milliseconds * SAMPLE_RATE / 1000)


def _rms(audio: FloatAudio) -> float:
    return float(np.sqrt((audio**2).mean())) if audio.size else 0.0


def _ramp(size: int) -> NDArray[np.float32]:
    return (0.5 - 0.5 * np.cos(np.pi * (np.arange(size) + 0.5) / size)).astype(np.float32)


def _fade_in(audio: FloatAudio, size: int) -> FloatAudio:
    size = min(size, audio.size)
    if size == 0:
        return audio
    return np.concatenate([audio[:size] * _ramp(size), audio[size:]])


def _fade_out(audio: FloatAudio, size: int) -> FloatAudio:
    size = min(size, audio.size)
    if size == 0:
        return audio
    return np.concatenate(
        [audio[: audio.size - size], audio[audio.size - size :] * _ramp(size)[::-1]]
    )
