"""The fallback voice: espeak-ng, so that the house speaks before ChatTTS's weights are there.

Both languages, no download, a few milliseconds a sentence. Mixed text is cut into Chinese and
other runs, each spoken by its own espeak voice. espeak-ng is one global state in a C library, so
one instance serves the process, and calls into it are serialised.
"""

import ctypes
import logging
import re
import threading
from functools import cache

import espeakng_loader
import numpy as np
import soxr

from ..config import FallbackConfig
from ..errors import EngineFailed
from .base import (
    EMPTY_AUDIO,
    SAMPLE_RATE,
    SAMPLES_PER_STEP,
    End,
    EngineInfo,
    FloatAudio,
    Mel,
    Prompt,
    Sampling,
    SlotOutput,
)

_LOGGER = logging.getLogger(__name__)

# espeak-ng's speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_CHARS_UTF8 = 1
_POS_CHARACTER = 1
_PARAMETER_RATE = 1
_OK = 0

_CHINESE = re.compile(r"[⺀-鿿豈-﫿＀-￯]")
_CONTROL_TOKEN = re.compile(r"\[[a-z_0-9]+\]", re.IGNORECASE)
_SPEAKABLE = re.compile(r"\w")
_SLOTS = 4
_LEVEL = 0.5
"""espeak-ng speaks up to full scale, louder than ChatTTS; resampled, its peaks would clip."""

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Espeak:
    """The C library, loaded and initialised once. Use `espeak()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: list[bytes] = []
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        # kept: C holds a pointer to it
        self._callback = _Callback(self._receive)
        self.rate = self._library.espeak_Initialize(
            _AUDIO_OUTPUT_SYNCHRONOUS,
            0,
            espeakng_loader.get_data_path().encode(),
            _INITIALIZE_DONT_EXIT,
        )
        if self.rate <= 0:
            raise EngineFailed("espeak-ng did not start")
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, _events: int) -> int:
        if samples and count > 0:
            self._chunks.append(ctypes.string_at(samples, 2 * count))
        return 0

    def speak(self, text: str, voice: str, words_per_minute: int) -> FloatAudio:
        """Samples at `rate`; an unknown voice is said and replaced. Raises `EngineFailed`."""
        data = text.replace("\0", " ").encode("utf-8", "ignore") + b"\0"
        with self._lock:
            self._chunks.clear()
            if self._library.espeak_SetVoiceByName(voice.encode()) != _OK:
                _LOGGER.warning("espeak-ng has no voice %r; using its own choice", voice)
                self._library.espeak_SetVoiceByName(b"en-us")
            self._library.espeak_SetParameter(_PARAMETER_RATE, words_per_minute, 0)
            status = self._library.espeak_Synth(
                data, len(data), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
            )
            self._library.espeak_Synchronize()
            pcm = b"".join(self._chunks)
            self._chunks.clear()
        if status != _OK:
            raise EngineFailed(f"espeak-ng failed with status {status}")
        audio: FloatAudio = np.frombuffer(pcm, dtype=np.int16).astype(np.float32) / 32768.0
        return audio


@cache
def espeak() -> Espeak:
    """The process's one espeak-ng."""
    return Espeak()


class FallbackEngine:
    """An `Engine` that speaks a whole segment in its first burst."""

    def __init__(self, config: FallbackConfig) -> None:
        self._config = config
        self._waiting: dict[int, Prompt] = {}
        self.info = EngineInfo(
            name="espeak-ng",
            identity="espeak-ng",
            device="cpu",
            precision="int16",
            slots=_SLOTS,
            description="the fallback voice",
            cacheable=False,
        )

    def start(self, slot: int, prompt: Prompt, sampling: Sampling) -> None:
        """Takes a segment into a free slot."""
        if slot in self._waiting or not 0 <= slot < _SLOTS:
            raise ValueError(f"slot {slot} is not free")
        self._waiting[slot] = prompt

    def burst(self, n_steps: int) -> list[SlotOutput]:
        """Speaks every waiting segment whole."""
        waiting, self._waiting = self._waiting, {}
        outputs = []
        for slot, prompt in waiting.items():
            audio = self._speak(prompt)
            end = End.COMPLETE if audio.size else End.EMPTY
            outputs.append(SlotOutput(slot, audio, None, audio.size // SAMPLES_PER_STEP, end))
        return outputs

    def _speak(self, prompt: Prompt) -> FloatAudio:
        # ChatTTS's speed 5 is its usual pace
        words_per_minute = round(self._config.rate_wpm * (1 + (prompt.style.speed - 5) * 0.08))
        engine = espeak()
        parts = [
            engine.speak(run, voice, words_per_minute)
            for voice, run in self._runs(prompt)
            if _SPEAKABLE.search(run)
        ]
        if not parts:
            return EMPTY_AUDIO
        audio: FloatAudio = soxr.resample(np.concatenate(parts), engine.rate, SAMPLE_RATE)
        return audio * _LEVEL

    def _runs(self, prompt: Prompt) -> list[tuple[str, str]]:
        """(voice, text) of the Chinese and other runs of a text."""
        text = _CONTROL_TOKEN.sub(" ", prompt.text)
        if prompt.language not in ("en", "zh"):
            return [(prompt.language, text)]
        runs: list[tuple[str, str]] = []
        for char in text:
            if _CHINESE.match(char):
                voice = self._config.voice_zh
            elif char.isalpha() or not runs:
                voice = self._config.voice_en
            else:
                voice = runs[-1][0]
            if runs and runs[-1][0] == voice:
                runs[-1] = (voice, runs[-1][1] + char)
            else:
                runs.append((voice, char))
        return runs

    def stop(self, slot: int) -> None:
        """Forgets a waiting segment."""
        self._waiting.pop(slot, None)

    def vocode(self, mel: Mel) -> FloatAudio:
        """Not supported: there is no mel stage."""
        raise EngineFailed("the fallback voice has no mel stage")

    def reset(self) -> None:
        """Forgets all waiting segments."""
        self._waiting.clear()

    def warm_up(self) -> None:
        """Loads the dictionaries of both languages."""
        for voice in (self._config.voice_en, self._config.voice_zh):
            espeak().speak("a", voice, self._config.rate_wpm)

    def close(self) -> None:
        """Nothing to give back."""
