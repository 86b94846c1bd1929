"""Every error this package raises on purpose, each with its stable code.

ChatTTSServerError
├── ConfigError            a setting is wrong; names it
├── CheckpointError        a model file is missing or damaged; names it
│   └── DamagedFile        its contents are wrong: fetching it again would help
├── VoiceError             a voice cannot be read; names it
├── EngineLost             the process must end (a poisoned CUDA context)
└── SpeechError            a request failed; `code` goes to the client
    ├── Busy               busy
    ├── DeadlineExceeded   timeout
    ├── TextTooLong        text_too_long
    ├── BadRequest         bad_request
    ├── ModelUnavailable   model_unavailable
    ├── EngineFailed       engine_failed
    └── ShuttingDown       shutting_down
"""

import errno
from pathlib import Path
from typing import ClassVar

EXIT_ENGINE_LOST = 70
"""Exit status after `EngineLost` (sysexits' EX_SOFTWARE): the supervisor should restart."""


class ChatTTSServerError(Exception):
    """Base of all errors of this package."""


class ConfigError(ChatTTSServerError):
    """A setting is unknown or has a bad value; the message names it."""


class CheckpointError(ChatTTSServerError):
    """A model file is missing, damaged or of another shape; the message names the file."""


class DamagedFile(CheckpointError):
    """A model file is not what was released; `path` is the file."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class VoiceError(ChatTTSServerError):
    """A voice definition cannot be used; the message names the voice or the file."""


class EngineLost(ChatTTSServerError):
    """The device cannot be used again by this process; it must end and be restarted."""


class SpeechError(ChatTTSServerError):
    """A request failed; `code` is what the client is sent."""

    code: ClassVar[str] = "engine_failed"


class Busy(SpeechError):
    """The queue is full."""

    code = "busy"


class DeadlineExceeded(SpeechError):
    """First audio or the whole request took longer than its deadline."""

    code = "timeout"


class TextTooLong(SpeechError):
    """The text has more characters than `text.max_chars`."""

    code = "text_too_long"


class BadRequest(SpeechError):
    """The peer broke the protocol or a limit."""

    code = "bad_request"


class ModelUnavailable(SpeechError):
    """No model is loaded, and the fallback voice is off."""

    code = "model_unavailable"


class EngineFailed(SpeechError):
    """The engine raised while it made this request's audio."""

    code = "engine_failed"


class ShuttingDown(SpeechError):
    """The server is stopping."""

    code = "shutting_down"


def is_exhausted(error: object) -> bool:
    """Whether the process or the machine is out of descriptors or memory: so now, not for good."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
