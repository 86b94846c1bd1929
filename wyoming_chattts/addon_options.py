"""The add-on's options, as Supervisor writes them, and the settings behind each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import ConfigError


def _replacements(value: Any) -> Any:
    return [{k: v for k, v in entry.items() if v not in (None, "")} for entry in value]


OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "voice": ("voices.default", str),
    "language": ("text.language", str),
    "precision": ("engine.precision", str),
    "cache_size_mb": ("cache.size_mb", int),
    "warm_up_phrases": ("warmup.phrases", list),
    "replacements": ("text.replacements", _replacements),
    "log_level": ("log.level", str.upper),
    "model_mirror": ("model.endpoint", str),
}
"""Option → setting, and how its value is read."""


def read_options(file: Path) -> dict[str, Any]:
    """Settings by dotted key from an options file. Raises `ConfigError` that names the option."""
    try:
        options = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(options, dict):
        raise ConfigError(f"{file}: not an object")
    settings: dict[str, Any] = {}
    for name, value in options.items():
        if name not in OPTIONS:
            raise ConfigError(f"{file}: there is no option {name!r}")
        if value is None or value == "":
            continue
        key, read = OPTIONS[name]
        try:
            settings[key] = read(value)
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(f"{file}: option {name}: {value!r} cannot be right") from None
    return settings
