"""Named voices: a speaker embedding or a recording, and a style.

Built-in voices are seeds of the ChatTTS package's speaker statistics; others come from the
configuration and from the folder of voices, which is read again as it changes. Embeddings need
torch and are worked out by `resolve()`, in a thread, so that the list of names is there at once.
"""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .config import Config, StyleConfig, VoiceConfig
from .engine.base import Recording, Style
from .errors import VoiceError
from .voice_folder import VoiceFolder, checked_name

_LOGGER = logging.getLogger(__name__)

BUILTIN_SEEDS = (2, 42, 1111, 2222, 3333, 4099, 5099, 5555, 6653, 7869)
LANGUAGES = ("en", "zh")

Origin = Literal["settings", "folder", "builtin"]
_SOURCES = ("seed", "embedding", "file", "recording")


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice; `embedding` is 768 fp16 numbers as bytes. Both it and `recording` are None until
    the voice is resolved."""

    name: str
    description: str
    style: Style
    temperature: float
    source: VoiceConfig
    origin: Origin
    gain_db: float = 0.0
    embedding: bytes | None = None
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The voices of a moment, replaced as a whole."""

    voices: dict[str, Voice]
    default: str
    problems: dict[str, str] = field(default_factory=dict)


class Voices:
    """The voices of a configuration, in a fixed order: those of the settings first, then those of
    the folder, then built-in ones. Reading is for the event loop, what blocks says so."""

    def __init__(self, config: Config) -> None:
        """Raises `VoiceError` for a definition in the settings that cannot be right (blocks)."""
        self._config = config
        self.folder = VoiceFolder(config.voices_path)
        self._with_embeddings = False
        self._fingerprint = self.folder.fingerprint()
        self._now = self._collect()

    @property
    def default(self) -> Voice:
        """The voice of requests that name none."""
        now = self._now
        return now.voices[now.default]

    @property
    def problems(self) -> dict[str, str]:
        """Files and voices that cannot be used, and why."""
        return self._now.problems

    def all(self) -> list[Voice]:
        """Every voice, the default one first."""
        now = self._now
        rest = [voice for voice in now.voices.values() if voice.name != now.default]
        return [now.voices[now.default], *rest]

    def get(self, name: str) -> Voice | None:
        """A voice by name."""
        return self._now.voices.get(name)

    def find(self, name: str | None) -> Voice:
        """A voice by name; the default one, with a warning, where there is none of that name.

        Home Assistant keeps names of voices that are gone, and a mute house is worse.
        """
        if name is None:
            return self.default
        voice = self._now.voices.get(name)
        if voice is None:
            _LOGGER.warning("there is no voice %r; using %r", name[:80], self._now.default)
            return self.default
        return voice

    def make(self, name: str, source: VoiceConfig) -> Voice:
        """A voice ready to speak that need not be listed (blocks, imports torch).

        Raises `VoiceError`.
        """
        return _resolved(_voice(name, source, self._config, "folder"))

    def keep(self, name: str, source: VoiceConfig, *, replace: bool = False) -> None:
        """Puts a voice into the folder (blocks, imports torch).

        Raises `VoiceError` or `OSError`.
        """
        # made once here, so that what cannot be a voice is refused before it is kept
        self.make(name, source)
        known = self.get(name)
        if known is not None and known.origin != "folder":
            raise VoiceError(f"there is a voice {name!r} already ({known.origin})")
        self.folder.save(name, source, replace=replace)
        self.refresh()

    def resolve(self) -> None:
        """Works out all embeddings (blocks, and imports torch).

        A voice that cannot be read is left out, with an error in the log.
        """
        self._with_embeddings = True
        self._now = self._collect()

    def refresh(self) -> bool:
        """Reads the folder again if it changed (blocks); whether it did.

        Raises `OSError`, the voices as they were, where the process is out of descriptors.
        """
        fingerprint = self.folder.fingerprint()
        if fingerprint == self._fingerprint:
            return False
        self._now = self._collect()
        self._fingerprint = fingerprint
        return True

    def set_default(self, name: str) -> None:
        """Chooses the default voice (blocks). Raises `VoiceError` or `OSError`."""
        if name not in self._now.voices:
            raise VoiceError(f"there is no voice {name!r}")
        self.folder.set_default(name, self._config.voices.default)
        self.refresh()

    def _definitions(self) -> tuple[dict[str, tuple[VoiceConfig, Origin]], dict[str, str]]:
        found = self.folder.read()
        problems = dict(found.problems)
        definitions: dict[str, tuple[VoiceConfig, Origin]] = {
            name: (source, "settings") for name, source in self._config.voices.custom.items()
        }
        for name, source in found.voices.items():
            if name in definitions:
                problems[name] = "the settings have a voice of this name"
            else:
                definitions[name] = (source, "folder")
        if self._config.voices.builtin:
            for seed in BUILTIN_SEEDS:
                definitions.setdefault(f"seed-{seed}", (VoiceConfig(seed=seed), "builtin"))
        if not definitions:
            raise VoiceError(
                "voices: there is none (voices.builtin is off, voices.custom and "
                f"{self.folder.path} are empty)"
            )
        return definitions, problems

    def _collect(self) -> _Snapshot:
        definitions, problems = self._definitions()
        before = getattr(self, "_now", None)
        known = before.problems if before is not None else {}
        voices: dict[str, Voice] = {}
        for name, (source, origin) in definitions.items():
            try:
                voice = _voice(name, source, self._config, origin)
                voices[name] = _resolved(voice) if self._with_embeddings else voice
            except VoiceError as error:
                if origin == "settings" and before is None:
                    raise
                problems[name] = str(error)
        _tell(problems, known)
        if not voices:
            # nobody is served by silence: a seed always works
            fallback = f"seed-{BUILTIN_SEEDS[0]}"
            voice = _voice(fallback, VoiceConfig(seed=BUILTIN_SEEDS[0]), self._config, "builtin")
            voices[fallback] = _resolved(voice) if self._with_embeddings else voice
        wanted = self.folder.default(self._config.voices.default)
        default = next((n for n in (wanted, self._config.voices.default) if n in voices), None)
        if default is None:
            default = next(iter(voices))
        if default != wanted and (before is None or before.default != default):
            _LOGGER.warning("voices.default: there is no %r; using %r", wanted, default)
        return _Snapshot(voices, default, problems)


def _tell(problems: dict[str, str], known: dict[str, str]) -> None:
    for name, problem in problems.items():
        if known.get(name) != problem:
            _LOGGER.error("voice %r is left out: %s", name, problem)


def _voice(name: str, source: VoiceConfig, config: Config, origin: Origin) -> Voice:
    where = f"voices.custom.{name}" if origin == "settings" else name
    try:
        checked_name(name)
    except VoiceError as error:
        raise VoiceError(
            f"voices.custom: {error}" if origin == "settings" else str(error)
        ) from None
    given = [key for key in _SOURCES if getattr(source, key) is not None]
    if len(given) != 1:
        raise VoiceError(f"{where}: needs one of {', '.join(_SOURCES)}")
    if source.recording is not None and not source.transcript:
        raise VoiceError(f"{where}: a recording needs its transcript")
    origin_text = f"seed {source.seed}" if source.seed is not None else given[0]
    return Voice(
        name=name,
        description=source.description or f"ChatTTS voice ({origin_text})",
        style=_style(config.style, source.style),
        temperature=source.temperature or config.sampling.temperature,
        source=source,
        origin=origin,
        gain_db=source.gain_db,
    )


def _resolved(voice: Voice) -> Voice:
    from .engine import speaker

    source = voice.source
    if source.recording is not None:
        codes = speaker.codes_from_string(source.recording)
        return replace(voice, recording=Recording(codes, source.transcript or ""))
    if source.seed is not None:
        embedding = speaker.from_seed(source.seed)
    elif source.embedding is not None:
        embedding = speaker.from_string(source.embedding)
    else:
        embedding = speaker.from_file(Path(source.file or "").expanduser())
    return replace(voice, embedding=embedding)


def portable(voice: Voice) -> VoiceConfig:
    """The definition of a voice for another machine: a file's embedding is written out (blocks,
    imports torch)."""
    if voice.source.file is None:
        return voice.source
    from .engine import speaker

    embedding = voice.embedding or speaker.from_file(Path(voice.source.file).expanduser())
    update = {"file": None, "embedding": speaker.to_string(embedding)}
    return voice.source.model_copy(update=update)


def _style(base: StyleConfig, own: StyleConfig | None) -> Style:
    chosen = own.model_dump(exclude_unset=True) if own is not None else {}
    return Style(**(base.model_dump() | chosen))
