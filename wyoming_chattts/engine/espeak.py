"""espeak-ng as a process of its own: what crashes there is a segment lost, not the server."""

import contextlib
import logging
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import espeakng_loader
import numpy as np

from ..errors import EngineFailed
from . import espeak_child
from .base import FloatAudio
from .espeak_child import ANSWER, HELLO, REQUEST

_LOGGER = logging.getLogger(__name__)

_END_S = 5.0
_LIMIT_S = 10
"""A thousand times what a sentence takes: a text that takes longer hangs."""


class Espeak:
    """An espeak-ng process, started when something is to be said and it is not there.

    For one thread at a time.
    """

    def __init__(self, library: str | None = None, limit_s: int = _LIMIT_S) -> None:
        """`library` is a path; by default that of the package `espeakng_loader`."""
        self._arguments = [library or espeakng_loader.get_library_path()]
        self._arguments += [espeakng_loader.get_data_path(), str(limit_s)]
        self._child: subprocess.Popen[bytes] | None = None
        self.rate = 0
        """Samples a second, known once something was said."""

    def speak(self, text: str, voice: str, words_per_minute: int) -> FloatAudio:
        """Samples at `rate`; an unknown voice is said and replaced.

        Raises `EngineFailed` if espeak-ng does not start, refuses the text, or ends at it.
        """
        # control characters are commands to espeak-ng
        plain = "".join(" " if unicodedata.category(char) == "Cc" else char for char in text)
        data, name = plain.encode("utf-8", "ignore"), voice.replace("\0", "").encode()
        child = self._child or self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(REQUEST.pack(words_per_minute, len(name), len(data)) + name + data)
            child.stdin.flush()
        except OSError:
            raise self._ended() from None
        known, status, size = ANSWER.unpack(self._read(ANSWER.size))
        pcm = self._read(size)
        if not known:
            _LOGGER.warning("espeak-ng has no voice %r; using its own choice", voice)
        if status:
            raise EngineFailed(f"espeak-ng failed with status {status}")
        audio: FloatAudio = np.frombuffer(pcm, dtype=np.int16).astype(np.float32) / 32768.0
        return audio

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._end()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-I", "-S", str(Path(espeak_child.__file__))]
        try:
            self._child = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise EngineFailed(f"espeak-ng did not start: {error}") from error
        (self.rate,) = HELLO.unpack(self._read(HELLO.size))
        return self._child

    def _read(self, size: int) -> bytes:
        assert self._child is not None and self._child.stdout is not None
        data = self._child.stdout.read(size)
        if len(data) < size:
            raise self._ended()
        return data

    def _ended(self) -> EngineFailed:
        status = self._end()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return EngineFailed(f"espeak-ng ended with {how}")

    def _end(self) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        for pipe in (child.stdin, child.stdout):
            # what was not written yet cannot be
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            return child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()
