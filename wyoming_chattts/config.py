"""Every setting, typed, with its default.

`load()` merges, from weak to strong: the defaults here, a YAML file, environment variables named
`WYOMING_CHATTTS_SECTION_KEY`, and the command line. A wrong key or value raises `ConfigError`
in one line that names it. The file `config.yaml` at the top of the repository documents each.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlparse

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from .errors import ConfigError

ENV_PREFIX = "WYOMING_CHATTTS_"
GOMP_SPINCOUNT = "1000"
"""Turns that a thread of torch spins while it waits for another, unless the environment says
otherwise; libgomp's own default is 300 000. Where another process wants a core, threads would
spin away the time of the one they wait for (`bench busy` measures both)."""

Milliseconds = Annotated[int, Field(ge=0, le=3_600_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Level = Annotated[int, Field(ge=0, le=9)]


class Section(BaseModel):
    """A group of settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ServerConfig(Section):
    uri: str = "tcp://0.0.0.0:10200"
    drain_s: Seconds = 10.0
    zeroconf: bool = False
    zeroconf_name: str = "chattts"
    max_connections: Annotated[int, Field(ge=1, le=10_000)] = 64
    max_connections_per_address: Annotated[int, Field(ge=1, le=10_000)] = 48
    idle_timeout_s: Seconds = 120.0
    read_timeout_s: Seconds = 15.0
    write_timeout_s: Seconds = 30.0
    max_event_bytes: Annotated[int, Field(ge=1024, le=16_777_216)] = 262_144
    max_payload_bytes: Annotated[int, Field(ge=0, le=67_108_864)] = 1_048_576
    max_json_depth: Annotated[int, Field(ge=4, le=500)] = 32
    max_stream_chunks: Annotated[int, Field(ge=1, le=10_000_000)] = 20_000

    @field_validator("uri")
    @classmethod
    def _uri(cls, value: str) -> str:
        if not value.startswith(("tcp://", "unix://")):
            raise ValueError("must start with tcp:// or unix://")
        if value.startswith("tcp://") and urlparse(value).port is None:
            raise ValueError("needs a port")
        return value


class ModelConfig(Section):
    dir: str | None = None
    repo: str = "2Noise/ChatTTS"
    revision: str | None = None
    endpoint: str | None = None
    download: bool = True
    verify: bool = True
    retry_min_s: Seconds = 30.0
    retry_max_s: Seconds = 3600.0


class EngineConfig(Section):
    kind: Literal["fast", "reference"] = "fast"
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    slots: Annotated[int, Field(ge=0, le=64)] = 0
    context: Annotated[int, Field(ge=256, le=4096)] = 1024
    threads: Annotated[int, Field(ge=0, le=256)] = 0
    unload_after_s: Seconds | None = None
    when_unloaded: Literal["fallback", "wait"] = "fallback"
    cuda_graphs: bool = True
    compiled: bool = True


class FallbackConfig(Section):
    enabled: bool = True
    languages: bool = True
    voice_en: str = "en-us"
    voice_zh: str = "cmn"
    rate_wpm: Annotated[int, Field(ge=80, le=450)] = 170


class QueueConfig(Section):
    max_pending: Annotated[int, Field(ge=1, le=10_000)] = 16


class DeadlineConfig(Section):
    first_audio_s: Seconds = 30.0
    total_s: Seconds = 300.0


class WorkerConfig(Section):
    burst_steps: Annotated[int, Field(ge=1, le=32)] = 8
    stall_s: Seconds = 60.0
    reload_after_failures: Annotated[int, Field(ge=1, le=100)] = 3


class StreamConfig(Section):
    chunk_ms: Annotated[int, Field(ge=10, le=1000)] = 40
    lookahead: Annotated[int, Field(ge=1, le=52)] = 16
    segments_ahead: Annotated[int, Field(ge=1, le=16)] = 3


class ReplacementConfig(Section):
    """A word or a regular expression, and what is said for it."""

    word: str | None = None
    regex: str | None = None
    say: str
    language: Literal["en", "zh"] | None = None

    @model_validator(mode="after")
    def _one(self) -> "ReplacementConfig":
        if (self.word is None) == (self.regex is None):
            raise ValueError("needs either word or regex")
        if self.word == "":
            raise ValueError("word is empty")
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ValueError(f"regex: {error}") from None
        return self


class TextConfig(Section):
    language: Literal["en", "zh"] = "en"
    max_chars: Annotated[int, Field(ge=1, le=1_000_000)] = 5000
    truncate: bool = False
    flush_ms: Milliseconds = 700
    control_tokens: bool = True
    segment_chars: Annotated[int, Field(ge=20, le=400)] = 120
    first_segment_chars: Annotated[int, Field(ge=5, le=400)] = 20
    replacements: tuple[ReplacementConfig, ...] = ()


class SamplingConfig(Section):
    temperature: Annotated[float, Field(ge=0.01, le=2.0)] = 0.3
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.7
    top_k: Annotated[int, Field(ge=3, le=100)] = 20
    repetition_penalty: Annotated[float, Field(ge=1.0, le=2.0)] = 1.05
    min_steps: Annotated[int, Field(ge=0, le=2048)] = 0
    max_steps: Annotated[int, Field(ge=8, le=2048)] = 768
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    refine: bool = False


class StyleConfig(Section):
    speed: Level = 5
    oral: Level | None = None
    laugh: Annotated[int, Field(ge=0, le=2)] | None = None
    pause: Annotated[int, Field(ge=0, le=7)] | None = None


class VoiceConfig(Section):
    """One voice: exactly one of `seed`, `embedding`, `file`, `recording`.

    `recording` is what `voices add --recording` made of one, `transcript` what is said in it.
    """

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    embedding: str | None = None
    file: str | None = None
    recording: str | None = None
    transcript: Annotated[str, Field(max_length=1000)] | None = None
    description: Annotated[str, Field(max_length=500)] | None = None
    style: StyleConfig | None = None
    temperature: Annotated[float, Field(ge=0.01, le=2.0)] | None = None
    gain_db: Annotated[float, Field(ge=-20, le=20)] = 0.0
    sample_text: Annotated[str, Field(max_length=500)] | None = None


class VoicesConfig(Section):
    default: str = "seed-2"
    builtin: bool = True
    dir: str | None = None
    rescan_s: Seconds = 2.0
    custom: dict[str, VoiceConfig] = Field(default_factory=dict)


class AudioConfig(Section):
    loudness_lufs: Annotated[float, Field(ge=-50, le=-5)] | None = -20.0
    rate: Annotated[int, Field(ge=8_000, le=48_000)] = 24_000
    gain_db: Annotated[float, Field(ge=-40, le=40)] = 0.0
    lead_ms: Milliseconds = 40
    tail_ms: Milliseconds = 120
    fade_ms: Annotated[int, Field(ge=0, le=200)] = 5
    pause_ms: Milliseconds = 120


class CacheConfig(Section):
    enabled: bool = True
    dir: str | None = None
    size_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    granularity: Literal["audio", "mel"] = "audio"
    lookup_timeout_ms: Milliseconds = 250


class WarmupConfig(Section):
    enabled: bool = True
    phrases: tuple[str, ...] = ()
    file: str | None = None
    remember: Annotated[int, Field(ge=0, le=10_000)] = 50


class WebConfig(Section):
    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 10201
    token: Annotated[str, Field(min_length=8, max_length=200)] | None = None
    ingress: bool = False


class LogConfig(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["text", "json"] = "text"
    slow_s: Seconds = 5.0


class Config(Section):
    """All settings of the server."""

    data_dir: str | None = None
    server: ServerConfig = ServerConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    fallback: FallbackConfig = FallbackConfig()
    queue: QueueConfig = QueueConfig()
    deadline: DeadlineConfig = DeadlineConfig()
    worker: WorkerConfig = WorkerConfig()
    stream: StreamConfig = StreamConfig()
    text: TextConfig = TextConfig()
    sampling: SamplingConfig = SamplingConfig()
    style: StyleConfig = StyleConfig()
    voices: VoicesConfig = VoicesConfig()
    audio: AudioConfig = AudioConfig()
    cache: CacheConfig = CacheConfig()
    warmup: WarmupConfig = WarmupConfig()
    web: WebConfig = WebConfig()
    log: LogConfig = LogConfig()

    @property
    def data_path(self) -> Path:
        """Where model, cache and voices lie unless a setting says otherwise."""
        if self.data_dir:
            return Path(self.data_dir).expanduser()
        base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(base).expanduser() / "wyoming-chattts"

    @property
    def model_path(self) -> Path:
        """Folder that holds (or will hold) `asset/`."""
        return Path(self.model.dir).expanduser() if self.model.dir else self.data_path / "model"

    @property
    def voices_path(self) -> Path:
        """Folder of voices."""
        return Path(self.voices.dir).expanduser() if self.voices.dir else self.data_path / "voices"

    @property
    def cache_path(self) -> Path:
        """Folder of the persistent cache."""
        return Path(self.cache.dir).expanduser() if self.cache.dir else self.data_path / "cache"


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Builds the settings; `overrides` maps dotted keys (`engine.device`) to values.

    Raises `ConfigError` for an unreadable file, an unknown key or a bad value.
    """
    data: dict[str, Any] = {}
    if file is not None:
        data = _read_yaml(file)
    for name, value in (os.environ if environ is None else environ).items():
        if name.startswith(ENV_PREFIX) and name != f"{ENV_PREFIX}CONFIG":
            _put(data, _key_of_variable(name), _parse(value, name))
    for key, value in (overrides or {}).items():
        _put(data, key, value)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def read_lines(file: Path) -> list[str]:
    """Lines of a text file that are not blank, stripped (blocks). Raises `ConfigError`."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def parse_override(text: str) -> tuple[str, Any]:
    """Reads one `--set section.key=value`; the value is YAML."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set wants section.key=value, not {text!r}")
    return key.strip(), _parse(value, key)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must hold sections, not {type(data).__name__}")
    # `section:` with nothing below it means its defaults
    return {key: value for key, value in data.items() if value is not None}


def _parse(value: str, name: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"{name}: cannot read {value!r}") from None


def _key_of_variable(name: str) -> str:
    """`WYOMING_CHATTTS_MODEL_DIR` -> `model.dir`."""
    rest = name.removeprefix(ENV_PREFIX).lower()
    if rest in Config.model_fields and not _is_section(rest):
        return rest
    section, _, key = rest.partition("_")
    if _is_section(section) and key in _section(section).model_fields:
        return f"{section}.{key}"
    raise ConfigError(f"{name}: no such setting")


def _is_section(name: str) -> bool:
    field = Config.model_fields.get(name)
    return field is not None and isinstance(field.default, Section)


def _section(name: str) -> type[Section]:
    return type(Config.model_fields[name].default)


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        child = data.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{key}: {parent} is not a section")
        data = child
    data[last] = value


def explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: no such setting")
        else:
            lines.append(f"{key}: {item['msg']} (got {item['input']!r})")
    return "; ".join(lines)
