"""The one seam that has several implementations: what the worker asks of an engine.

An engine is called from a single thread. It has a fixed number of slots; each decodes one segment.
Audio is float32 in -1..1, mono, 24 kHz. One decode step is 512 samples (21.3 ms).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 24_000
MEL_HOP = 256
"""Samples between mel frames (ChatTTS `config.py`, Vocos head)."""
FRAMES_PER_STEP = 2
SAMPLES_PER_STEP = MEL_HOP * FRAMES_PER_STEP
STEPS_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_STEP
"""46.875 decode steps are one second of speech."""

FloatAudio = NDArray[np.float32]
Mel = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How codes are drawn; the defaults are those of the ChatTTS package (`InferCodeParams`)."""

    temperature: float = 0.3
    top_p: float = 0.7
    top_k: int = 20
    repetition_penalty: float = 1.05
    min_steps: int = 0
    max_steps: int = 768
    seed: int = 0
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Style:
    """Levels of ChatTTS's style tokens: `[speed_N]`, `[oral_N]`, `[laugh_N]`, `[break_N]`.

    Speed goes into the prompt of the audio codes. The other three guide the refine pass.
    """

    speed: int = 5
    oral: int | None = None
    laugh: int | None = None
    pause: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that a voice goes on from: its codes `[4, steps]` as little-endian uint16, and
    what is said in it."""

    codes: bytes
    transcript: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one segment is to sound like.

    `text` is in its spoken form. `speaker` is a 768-number fp16 embedding as little-endian bytes,
    or None for the model's own choice; `recording` is the other way to say whose voice it is.
    `language` is used by the fallback voice only.
    """

    text: str
    speaker: bytes | None = None
    style: Style = Style()
    refine: bool = False
    language: str = "en"
    recording: Recording | None = None


class End(Enum):
    """Why a slot has no more audio."""

    COMPLETE = "complete"
    LIMIT = "limit"
    """Cut at `max_steps` without an end code: speech may be missing; not to be cached."""
    BROKEN = "broken"
    """What came of it is not sound: the model computed something that is not a number, or the
    fallback voice failed."""
    EMPTY = "empty"
    """The end code came first, with every noise that was tried."""


@dataclass(frozen=True, slots=True)
class SlotOutput:
    """What a burst made for one slot.

    `audio` is `[samples]`, `mel` is `[100, frames]` fp16 (None if the engine has no mel stage),
    `steps` counts the decode steps of the segment so far. `prefill_s` and `codec_s` are times that
    the burst spent on this slot alone. After an output with `end` the slot is
    free.
    """

    slot: int
    audio: FloatAudio
    mel: Mel | None
    steps: int
    end: End | None = None
    prefill_s: float = 0.0
    codec_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """`identity` is part of the cache keys: model hash, precision and look-ahead."""

    name: str
    identity: str
    device: str
    precision: str
    slots: int
    description: str
    cacheable: bool
    has_mel: bool = False
    synthetic: bool = False


class Engine(Protocol):
    """Turns prompts into audio, some steps at a time."""

    info: EngineInfo

    def start(self, slot: int, prompt: Prompt, sampling: Sampling) -> None:
        """Takes a segment into a free slot."""

    def burst(self, n_steps: int) -> list[SlotOutput]:
        """Advances every running slot by up to `n_steps` and returns what became audible."""

    def stop(self, slot: int) -> None:
        """Frees a slot; does nothing where it is free already."""

    def vocode(self, mel: Mel) -> FloatAudio:
        """Audio of a whole segment from its mel frames `[100, frames]`."""

    def reset(self) -> None:
        """Frees all slots, whatever state they are in."""

    def warm_up(self) -> None:
        """Runs each kernel once, so that the first request does not pay for it."""

    def close(self) -> None:
        """Gives the device memory back."""


STEPS_PER_LETTER = 3
STEPS_PER_HANZI = 10
"""What real speech takes: about 15 letters or 4.5 Chinese characters a second."""


def expected_steps(text: str) -> int:
    """Decode steps that a spoken form takes if a person says it; control tokens take none."""
    steps = 0
    inside = False
    for char in text:
        if char == "[":
            inside = True
        elif char == "]":
            inside = False
        elif not inside and char.isalpha():
            steps += STEPS_PER_LETTER if ord(char) < 0x2E80 else STEPS_PER_HANZI
    return max(steps, 4)


EMPTY_AUDIO: FloatAudio = np.zeros(0, dtype=np.float32)
