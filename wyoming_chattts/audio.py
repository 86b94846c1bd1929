"""From the engine's float samples to what is sent: edges, level, 16-bit PCM.

`SegmentAudio` works on a stream: silence before the first sound is cut to `lead_ms`, silence after
the last to `tail_ms`, and nothing is taken out of the middle (silence is held back until it is
known whether sound follows). Samples are mono, 24 kHz.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import soxr
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
    """The audio of one segment on its way out. What it gives does not depend on the pieces."""

    config: AudioConfig
    gain_db: float = 0.0
    _rest: FloatAudio = field(default_factory=lambda: EMPTY_AUDIO)
    """Less than a window."""
    _pending: FloatAudio = field(default_factory=lambda: EMPTY_AUDIO)
    """Whole windows that were not given out yet."""
    _sound: int = 0
    """Samples of `_pending` up to the end of the last window with sound."""
    _started: bool = False

    def push(self, audio: FloatAudio) -> bytes:
        """Takes samples; returns the PCM that can be sent now."""
        audio = np.concatenate([self._rest, audio])
        whole = audio.size // _WINDOW * _WINDOW
        self._rest = audio[whole:]
        self._take(audio[:whole])
        # the last samples of sound stay, to be faded out if it turns out that they are the last
        return self._give(self._sound - self._fade)

    def finish(self) -> bytes:
        """The segment's end: returns the rest, faded out."""
        if _rms(self._rest) >= _SILENCE_RMS:
            self._take(np.pad(self._rest, (0, _WINDOW - self._rest.size)))
        end = min(self._pending.size, self._sound + _samples(self.config.tail_ms))
        last = self._pending[: end if self._started else 0]
        self._pending = self._rest = EMPTY_AUDIO
        return self._pcm(_fade_out(last, self._fade))

    @property
    def _fade(self) -> int:
        return _samples(self.config.fade_ms)

    def _take(self, audio: FloatAudio) -> None:
        """Appends whole windows, and notes where the last sound is."""
        before = self._pending.size
        self._pending = np.concatenate([self._pending, audio])
        windows = audio.reshape(-1, _WINDOW)
        loud = np.flatnonzero(np.sqrt((windows**2).mean(axis=1)) >= _SILENCE_RMS)
        lead = _samples(self.config.lead_ms)
        if not self._started:
            if not loud.size:
                # leading silence: no more of it than may stay
                keep = max(0, self._pending.size - lead)
                self._pending = self._pending[keep:]
                return
            first = before + int(loud[0]) * _WINDOW
            cut = max(0, first - lead)
            before -= cut
            self._pending = _fade_in(self._pending[cut:], self._fade)
            self._started = True
        if loud.size:
            self._sound = before + (int(loud[-1]) + 1) * _WINDOW

    def _give(self, count: int) -> bytes:
        """Gives out the first `count` pending samples."""
        if count <= 0:
            return b""
        out, self._pending = self._pending[:count], self._pending[count:]
        self._sound -= count
        return self._pcm(out)

    def _pcm(self, audio: FloatAudio) -> bytes:
        return to_pcm16(audio, self.config.gain_db + self.gain_db)


def to_pcm16(audio: FloatAudio, gain_db: float = 0.0) -> bytes:
    """Little-endian 16-bit PCM, clipped; a NaN becomes silence."""
    scaled = np.nan_to_num(audio * (32767.0 * 10 ** (gain_db / 20)), nan=0.0)
    pcm: bytes = np.clip(np.rint(scaled), -32768, 32767).astype("<i2").tobytes()
    return pcm


class OutputRate:
    """A stream of PCM at another sampling rate, by soxr."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._stream = (
            soxr.ResampleStream(SAMPLE_RATE, rate, CHANNELS, dtype="int16")
            if rate != SAMPLE_RATE
            else None
        )

    def convert(self, pcm: bytes, *, last: bool = False) -> bytes:
        """PCM at the output rate for PCM at 24 kHz; `last` brings what the filter holds back."""
        if self._stream is None:
            return pcm
        samples = np.frombuffer(pcm, dtype="<i2")
        result: bytes = self._stream.resample_chunk(samples, last=last).astype("<i2").tobytes()
        return result


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
