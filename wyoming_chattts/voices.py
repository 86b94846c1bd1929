"""Named voices: a speaker embedding and a style.

Built-in voices are seeds of the ChatTTS package's speaker statistics; others come from the
configuration. Embeddings need torch and are worked out by `resolve()`, in a thread, so that the
list of names is there at once.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from .config import Config, StyleConfig, VoiceConfig
from .engine.base import Style
from .errors import VoiceError

_LOGGER = logging.getLogger(__name__)

BUILTIN_SEEDS = (2, 42, 1111, 2222, 3333, 4099, 5099, 5555, 6653, 7869)
LANGUAGES = ("en", "zh")
_NAME_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice; `embedding` is 768 fp16 numbers as bytes, None until it is resolved."""

    name: str
    description: str
    style: Style
    temperature: float
    source: VoiceConfig
    embedding: bytes | None = None


class Voices:
    """The voices of a configuration, in a fixed order: custom ones first, then built-in ones."""

    def __init__(self, config: Config) -> None:
        """Raises `VoiceError` for a definition that cannot be right."""
        definitions = dict(config.voices.custom)
        if config.voices.builtin:
            for seed in BUILTIN_SEEDS:
                definitions.setdefault(f"seed-{seed}", VoiceConfig(seed=seed))
        if not definitions:
            raise VoiceError(
                "voices: there is none (voices.builtin is off and voices.custom empty)"
            )
        self._voices = {name: _voice(name, source, config) for name, source in definitions.items()}
        self._default = config.voices.default
        if self._default not in self._voices:
            self._default = next(iter(self._voices))
            _LOGGER.warning(
                "voices.default: there is no %r; using %r", config.voices.default, self._default
            )

    @property
    def default(self) -> Voice:
        """The voice of requests that name none."""
        return self._voices[self._default]

    def all(self) -> list[Voice]:
        """Every voice, the default one first."""
        rest = [voice for voice in self._voices.values() if voice.name != self._default]
        return [self.default, *rest]

    def find(self, name: str | None) -> Voice:
        """A voice by name; the default one, with a warning, where there is none of that name.

        Home Assistant keeps names of voices that are gone, and a mute house is worse.
        """
        if name is None:
            return self.default
        voice = self._voices.get(name)
        if voice is None:
            _LOGGER.warning("there is no voice %r; using %r", name[:80], self._default)
            return self.default
        return voice

    def resolve(self) -> None:
        """Works out all embeddings (blocks, and imports torch).

        A voice that cannot be read is left out, with an error in the log.
        """
        from .engine import speaker

        for name, voice in list(self._voices.items()):
            source = voice.source
            try:
                if source.seed is not None:
                    embedding = speaker.from_seed(source.seed)
                elif source.embedding is not None:
                    embedding = speaker.from_string(source.embedding)
                else:
                    embedding = speaker.from_file(Path(source.file or "").expanduser())
            except VoiceError as error:
                _LOGGER.error("voice %r is left out: %s", name, error)
                if len(self._voices) > 1:
                    del self._voices[name]
                continue
            self._voices[name] = replace(voice, embedding=embedding)
        if self._default not in self._voices:
            self._default = next(iter(self._voices))


def _voice(name: str, source: VoiceConfig, config: Config) -> Voice:
    if not name or len(name) > _NAME_LIMIT or not name.isprintable() or set(name) & set("/\\"):
        raise VoiceError(f"voices.custom: {name!r} cannot be a name")
    given = [key for key in ("seed", "embedding", "file") if getattr(source, key) is not None]
    if len(given) != 1:
        raise VoiceError(f"voices.custom.{name}: needs one of seed, embedding, file")
    origin = f"seed {source.seed}" if source.seed is not None else given[0]
    return Voice(
        name=name,
        description=source.description or f"ChatTTS voice ({origin})",
        style=_style(config.style, source.style),
        temperature=source.temperature or config.sampling.temperature,
        source=source,
    )


def _style(base: StyleConfig, own: StyleConfig | None) -> Style:
    chosen = own.model_dump(exclude_unset=True) if own is not None else {}
    return Style(**(base.model_dump() | chosen))
