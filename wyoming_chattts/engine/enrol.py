"""A voice from a recording: checks it, and has the ChatTTS package turn it into codes.

The model then goes on speaking from those codes as if the recording were its own beginning. Uses
the reference package (its audio encoder is not part of the serving path); blocks for seconds.
"""

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
import torch

from ..errors import VoiceError
from .base import SAMPLE_RATE, STEPS_PER_SECOND, FloatAudio
from .checkpoint import Checkpoint
from .speaker import MAX_RECORDING_STEPS, codes_from_string

MIN_S = 2.0
MAX_S = 15.0
_QUIET_DB = -45.0
_SOFT_DB = -32.0
_CLIPPED = 0.999
_GOOD_RATE = 16_000
_BYTES_LIMIT = 50_000_000


@dataclass(frozen=True, slots=True)
class RecordingCheck:
    """A recording as `[samples]` at 24 kHz, what it is like, and what could be better."""

    audio: FloatAudio
    seconds: float
    rate: int
    level_db: float
    advice: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s at {self.rate} Hz, {self.level_db:.1f} dBFS"


def check_recording(path: Path) -> RecordingCheck:
    """Reads a WAV file. Raises `VoiceError` for one that no voice can be made of."""
    audio, rate = _read_wav(path)
    seconds = audio.size / rate
    if not MIN_S <= seconds <= MAX_S:
        raise VoiceError(
            f"{path}: {seconds:.1f} s long; {MIN_S:g} to {MAX_S:g} s are needed, best are 5 to 10"
        )
    level_db = 10 * float(np.log10(max(float((audio**2).mean()), 1e-12)))
    if level_db < _QUIET_DB:
        raise VoiceError(f"{path}: too quiet ({level_db:.0f} dBFS); record it nearer or louder")
    advice = []
    if level_db < _SOFT_DB:
        advice.append(f"rather quiet ({level_db:.0f} dBFS)")
    if float((np.abs(audio) >= _CLIPPED).mean()) > 0.001:
        advice.append("clipped; record it with less gain")
    if rate < _GOOD_RATE:
        advice.append(f"recorded at {rate} Hz; {_GOOD_RATE} Hz or more keep the voice's treble")
    resampled: FloatAudio = soxr.resample(audio, rate, SAMPLE_RATE).astype(np.float32)
    return RecordingCheck(resampled, seconds, rate, level_db, tuple(advice))


def encode_recording(checkpoint: Checkpoint, audio: FloatAudio) -> str:
    """The codes of a recording `[samples]` at 24 kHz as the package writes them.

    Raises `ConfigError` where the package is not there, `VoiceError` where nothing comes of it.
    """
    from .reference import load_chat

    chat = load_chat(checkpoint, torch.device("cpu"))
    limit = int(MAX_RECORDING_STEPS / STEPS_PER_SECOND * SAMPLE_RATE)
    encoded = str(chat.sample_audio_speaker(audio[:limit]))
    codes_from_string(encoded)
    return encoded


def _read_wav(path: Path) -> tuple[FloatAudio, int]:
    try:
        if path.stat().st_size > _BYTES_LIMIT:
            raise VoiceError(f"{path}: too large for a recording of {MAX_S:g} s")
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except OSError as error:
        raise VoiceError(f"{path}: {error.strerror}") from None
    except (wave.Error, EOFError) as error:
        raise VoiceError(
            f"{path}: not a PCM WAV file ({error}); convert it first, as with "
            "`ffmpeg -i recording.m4a -ac 1 recording.wav`"
        ) from None
    if width not in (2, 3, 4) or channels < 1 or rate < 8000:
        raise VoiceError(f"{path}: {8 * width} bits, {channels} channels, {rate} Hz: not usable")
    samples = np.frombuffer(data[: len(data) // (width * channels) * (width * channels)], np.uint8)
    # as the upper bytes of 32 bits, whatever the width
    wide = np.zeros((samples.size // width, 4), np.uint8)
    wide[:, 4 - width :] = samples.reshape(-1, width)
    audio = wide.view("<i4").reshape(-1, channels).astype(np.float64).mean(axis=1) / 2**31
    result: FloatAudio = audio.astype(np.float32)
    return result, rate
