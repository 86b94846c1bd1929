"""The log: lines for people, or JSON for programs."""

import json
import logging
import sys
import time
from typing import Any

from .config import LogConfig

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


def set_up(config: LogConfig) -> None:
    """Sends the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter() if config.format == "json" else logging.Formatter(_TEXT)
    handler.setFormatter(formatter)
    logging.basicConfig(level=config.level, handlers=[handler])
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
