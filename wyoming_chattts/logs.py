"""The log: lines for people, or JSON for programs."""

import json
import logging
import math
import sys
import time
from typing import Any

from .config import LogConfig

_LOGGER = logging.getLogger(__name__)

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# these say per request or per lookup what nobody asked for
_NOISY = (
    "httpx",
    "httpx2",
    "urllib3",
    "filelock",
    "numba",
    "asyncio",
    "huggingface_hub",
    "aiohttp",
)
_PEER_PAUSE_S = 60.0
_PEERS_KEPT = 1000


class JsonFormatter(logging.Formatter):
    """One object a line; what a record carries as `fields` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        seconds, milliseconds = time.gmtime(record.created), int(record.msecs)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{milliseconds:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PeerLog:
    """Warnings about peers, one line a peer and minute: a flood must not fill the log."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def warn(self, address: str, message: str, *arguments: object) -> None:
        """A line about `address`, unless it had one within the last minute."""
        now = time.monotonic()
        if now - self._told.get(address, -math.inf) < _PEER_PAUSE_S:
            _LOGGER.debug(message, *arguments)
            return
        if len(self._told) >= _PEERS_KEPT:
            self._told.clear()
        self._told[address] = now
        _LOGGER.warning(message, *arguments)


def set_up(config: LogConfig) -> None:
    """Sends the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter() if config.format == "json" else logging.Formatter(_TEXT)
    handler.setFormatter(formatter)
    logging.basicConfig(level=config.level, handlers=[handler])
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
