"""The folder of voices: one `NAME.yaml` a voice, and the `.pt` and `.txt` files of the community.

Reading and writing block, and need no torch. A file that is no voice is a problem told, never an
error raised. What is removed goes into `.deleted/` and can be brought back.
"""

import contextlib
import json
import re
import time
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from .atomic import write_json, write_text
from .config import VoiceConfig, explain
from .errors import VoiceError, is_exhausted

_SUFFIXES = (".yaml", ".pt", ".txt")
"""From strong to weak, where several files have one name."""
_DEFAULT_FILE = ".default.json"
_DELETED = ".deleted"
_DELETED_KEPT = 20
_NAME_LIMIT = 64
_FILE_LIMIT = 1_000_000
_VOICES_LIMIT = 500
_TOKEN = re.compile(r"\d{1,20}")


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds. `problems` is what is wrong with which file."""

    voices: dict[str, VoiceConfig] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def checked_name(name: str) -> str:
    """The name in its normal form. Raises `VoiceError` for one that cannot be a file's."""
    name = unicodedata.normalize("NFC", name).strip()
    bad = set(name) & set('/\\:*?"<>|')
    if not name or len(name.encode()) > 3 * _NAME_LIMIT or len(name) > _NAME_LIMIT:
        raise VoiceError(f"a voice's name has 1 to {_NAME_LIMIT} characters")
    if bad or not name.isprintable() or name.startswith("."):
        raise VoiceError(f"{name!r} cannot be a voice's name")
    return name


class VoiceFolder:
    """The folder; it need not exist."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        """Changes whenever a file of the folder does. Raises `OSError` where the process is out of
        descriptors, as `read` and `default` do: then nothing is known of the folder."""
        try:
            return tuple(
                (file.name, stat.st_mtime_ns, stat.st_size)
                for file in sorted(self.path.iterdir())
                if (file.suffix in _SUFFIXES or file.name == _DEFAULT_FILE)
                and (stat := file.stat())
            )
        except OSError as error:
            if is_exhausted(error):
                raise
            return ()

    def read(self) -> Found:
        """All voices, by name."""
        found = Found()
        try:
            files = [f for f in sorted(self.path.iterdir()) if f.suffix in _SUFFIXES]
        except FileNotFoundError:
            return found
        except OSError as error:
            if is_exhausted(error):
                raise
            found.problems[str(self.path)] = str(error.strerror)
            return found
        for file in sorted(files, key=lambda f: _SUFFIXES.index(f.suffix)):
            if file.name.startswith("."):
                continue
            try:
                name = checked_name(file.stem)
                if name in found.voices:
                    if not self._belongs(file, found.voices[name]):
                        found.problems[file.name] = f"there is a voice {name!r} already"
                elif len(found.voices) >= _VOICES_LIMIT:
                    found.problems[file.name] = f"more than {_VOICES_LIMIT} voices"
                else:
                    found.voices[name] = self._definition(file)
            except (VoiceError, OSError) as error:
                if is_exhausted(error):
                    raise
                found.problems[file.name] = str(error)
        return found

    def _definition(self, file: Path) -> VoiceConfig:
        if file.suffix != ".yaml":
            return VoiceConfig(file=str(file))
        if file.stat().st_size > _FILE_LIMIT:
            raise VoiceError("too large for a voice")
        definition = parse(file.read_text(encoding="utf-8", errors="replace"))
        if definition.file is not None:
            # beside the voice that names it
            named = self.path / Path(definition.file).expanduser()
            definition = definition.model_copy(update={"file": str(named)})
        return definition

    def _belongs(self, file: Path, definition: VoiceConfig) -> bool:
        return definition.file is not None and Path(definition.file) == file

    def save(self, name: str, definition: VoiceConfig, *, replace: bool = False) -> None:
        """Writes a voice. Raises `VoiceError` for a name that is taken or no name, and `OSError`,
        the folder as it was, where it cannot be written."""
        name = checked_name(name)
        if not replace and self._files(name):
            raise VoiceError(f"there is a voice {name!r} already")
        write_text(self.path / f"{name}.yaml", dump(definition))

    def rename(self, old: str, new: str) -> None:
        """Gives a voice another name. Raises `VoiceError` or `OSError`."""
        new = checked_name(new)
        files = self._required(old)
        if self._files(new):
            raise VoiceError(f"there is a voice {new!r} already")
        for file in files:
            file.rename(self.path / f"{new}{file.suffix}")

    def remove(self, name: str) -> str:
        """Sets a voice aside; returns what `restore` brings it back with."""
        files = self._required(name)
        token = str(time.time_ns())
        aside = self.path / _DELETED / token
        aside.mkdir(parents=True)
        for file in files:
            file.rename(aside / file.name)
        self._forget_old()
        return token

    def restore(self, token: str) -> str:
        """Brings a removed voice back; returns its name. Raises `VoiceError` or `OSError`."""
        aside = self.path / _DELETED / token
        if not _TOKEN.fullmatch(token) or not aside.is_dir():
            raise VoiceError("that voice is gone for good")
        files = sorted(aside.iterdir())
        name = files[0].stem if files else ""
        if self._files(name):
            raise VoiceError(f"there is a voice {name!r} by now")
        for file in files:
            file.rename(self.path / file.name)
        aside.rmdir()
        return name

    def default(self, configured: str) -> str:
        """The default voice: the one that was chosen here, unless the setting changed since."""
        try:
            chosen = json.loads((self.path / _DEFAULT_FILE).read_text(encoding="utf-8"))
            if chosen["instead_of"] == configured:
                return str(chosen["voice"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if is_exhausted(error):
                raise
        return configured

    def set_default(self, name: str, configured: str) -> None:
        """Chooses the default voice until the setting `voices.default` says another."""
        write_json(self.path / _DEFAULT_FILE, {"voice": name, "instead_of": configured})

    def _files(self, name: str) -> list[Path]:
        named = (self.path / f"{name}{suffix}" for suffix in _SUFFIXES)
        return [file for file in named if file.exists()]

    def _required(self, name: str) -> list[Path]:
        files = self._files(checked_name(name))
        if not files:
            raise VoiceError(f"there is no voice {name!r} in {self.path}")
        return files

    def _forget_old(self) -> None:
        with contextlib.suppress(OSError):
            for aside in sorted((self.path / _DELETED).iterdir())[:-_DELETED_KEPT]:
                for file in aside.iterdir():
                    file.unlink()
                aside.rmdir()


def parse(text: str) -> VoiceConfig:
    """A voice from YAML. Raises `VoiceError`."""
    try:
        data: Any = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise VoiceError(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    return checked_definition(data)


def checked_definition(data: object) -> VoiceConfig:
    """A voice from plain data. Raises `VoiceError` that names what is wrong."""
    if not isinstance(data, dict):
        raise VoiceError("not a voice")
    try:
        return VoiceConfig.model_validate(data)
    except ValidationError as error:
        raise VoiceError(explain(error)) from None


def dump(definition: VoiceConfig) -> str:
    """YAML of a voice, with what was set only."""
    data = definition.model_dump(exclude_none=True, exclude_defaults=True)
    return yaml.safe_dump(data, allow_unicode=True, sort_keys=False, width=1_000_000)
