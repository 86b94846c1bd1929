"""The fallback voice: espeak-ng, so that the house speaks before ChatTTS's weights are there.

Both languages, no download, a few milliseconds a sentence. Mixed text is cut into Chinese and
other runs, each spoken by its own espeak voice. A text that espeak-ng crashes at is said again
without its signs.
"""

import logging
import re
import unicodedata

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
from .espeak import Espeak

_LOGGER = logging.getLogger(__name__)

_CHINESE = re.compile(r"[⺀-鿿豈-﫿＀-￯]")
_CONTROL_TOKEN = re.compile(r"\[[a-z_0-9]+\]", re.IGNORECASE)
_SPEAKABLE = re.compile(r"\w")
_SLOTS = 4
_LEVEL = 0.5
"""espeak-ng speaks up to full scale, louder than ChatTTS; resampled, its peaks would clip."""
_SPOKEN = frozenset(("Lu", "Ll", "Lo", "Mn", "Mc", "Nd"))
_PUNCTUATION = frozenset(".,!?;:'-。，！？；：、")
_MARKS = re.compile(r"((?:[^\w\s.,!?;:'-]){3})(?:[^\w\s.,!?;:'-])+")
_LONGEST_WORD = 40


class FallbackEngine:
    """An `Engine` that speaks a whole segment in its first burst."""

    def __init__(self, config: FallbackConfig) -> None:
        self._config = config
        self._espeak = Espeak()
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
        """Speaks every waiting segment whole; one that espeak-ng cannot speak ends as `BROKEN`."""
        waiting, self._waiting = self._waiting, {}
        outputs = []
        for slot, prompt in waiting.items():
            try:
                audio = self._speak(prompt)
                end = End.COMPLETE if audio.size else End.EMPTY
            except EngineFailed as error:
                _LOGGER.error("the fallback voice failed at a segment: %s", error)
                audio, end = EMPTY_AUDIO, End.BROKEN
            outputs.append(SlotOutput(slot, audio, None, audio.size // SAMPLES_PER_STEP, end))
        return outputs

    def _speak(self, prompt: Prompt) -> FloatAudio:
        # ChatTTS's speed 5 is its usual pace
        words_per_minute = round(self._config.rate_wpm * (1 + (prompt.style.speed - 5) * 0.08))
        parts = [
            self._say(run, voice, words_per_minute)
            for voice, run in self._runs(prompt)
            if _SPEAKABLE.search(run)
        ]
        if not parts:
            return EMPTY_AUDIO
        audio: FloatAudio = soxr.resample(np.concatenate(parts), self._espeak.rate, SAMPLE_RATE)
        return audio * _LEVEL

    def _say(self, text: str, voice: str, words_per_minute: int) -> FloatAudio:
        try:
            return self._espeak.speak(text, voice, words_per_minute)
        except EngineFailed as error:
            _LOGGER.warning("%s; saying the segment again without its signs", error)
            return self._espeak.speak(without_signs(text), voice, words_per_minute)

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
            self._espeak.speak("a", voice, self._config.rate_wpm)

    def close(self) -> None:
        """Ends espeak-ng's process."""
        self._espeak.close()


def without_signs(text: str) -> str:
    """Letters, their marks, digits and the usual punctuation of a text, in words that end: what
    espeak-ng can be trusted with."""
    kept = "".join(
        char if char in _PUNCTUATION or unicodedata.category(char) in _SPOKEN else " "
        for char in text
    )
    kept = _MARKS.sub(r"\1", kept)
    return " ".join(
        word[start : start + _LONGEST_WORD]
        for word in kept.split()
        for start in range(0, len(word), _LONGEST_WORD)
    )
