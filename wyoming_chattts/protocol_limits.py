"""Reads events from a peer that may be slow, broken or hostile.

The wyoming library's reader trusts its peer; this one bounds sizes and times and checks types. An
event is a line of JSON (`type`, `data`, `data_length`, `payload_length`), then that many bytes of
JSON data, then that many bytes of payload. Payloads carry nothing for speech and are dropped.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from .config import ServerConfig
from .errors import BadRequest, DeadlineExceeded

_CHUNK = 65_536
_TYPE_LIMIT = 64


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event whose outer form is right: a type and an object of data."""

    type: str
    data: dict[str, Any]


class EventReader:
    """Reads one peer's events."""

    def __init__(self, reader: asyncio.StreamReader, limits: ServerConfig) -> None:
        """`reader` must have been made with a limit of at least `max_event_bytes`."""
        self._reader = reader
        self._limits = limits

    async def wait(self) -> bytes:
        """The first byte of the next event, or nothing at the end of the stream."""
        return await self._reader.read(1)

    async def read(self, first: bytes) -> RawEvent:
        """The rest of an event.

        Raises `BadRequest` for a malformed or oversized event, `DeadlineExceeded` for one that
        does not arrive within `read_timeout_s`, and `EOFError` where the peer ends in the middle.
        """
        try:
            async with asyncio.timeout(self._limits.read_timeout_s):
                return await self._read(first)
        except TimeoutError:
            raise DeadlineExceeded("an event did not arrive whole in time") from None
        except asyncio.IncompleteReadError:
            raise EOFError from None

    async def _read(self, first: bytes) -> RawEvent:
        try:
            line = first if first == b"\n" else first + await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise BadRequest("an event's header is too long") from None
        header = self._object(line, "header")
        kind = header.get("type")
        if not isinstance(kind, str) or not 0 < len(kind) <= _TYPE_LIMIT:
            raise BadRequest("an event needs a type")
        data = header.get("data")
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise BadRequest("an event's data must be an object")
        length = self._length(header, "data_length", self._limits.max_event_bytes)
        if length:
            data |= self._object(await self._reader.readexactly(length), "data")
        await self._skip(self._length(header, "payload_length", self._limits.max_payload_bytes))
        return RawEvent(kind, data)

    def _object(self, text: bytes, name: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise BadRequest(f"an event's {name} is not JSON") from None
        if _is_deeper(value, self._limits.max_json_depth):
            raise BadRequest(f"an event's {name} is nested too deep")
        if not isinstance(value, dict):
            raise BadRequest(f"an event's {name} must be an object")
        return value

    @staticmethod
    def _length(header: dict[str, Any], key: str, limit: int) -> int:
        length = header.get(key)
        if length is None:
            return 0
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise BadRequest(f"{key} must be a whole number")
        if length > limit:
            raise BadRequest(f"{key} is over {limit}")
        return length

    async def _skip(self, length: int) -> None:
        while length:
            chunk = await self._reader.read(min(length, _CHUNK))
            if not chunk:
                raise asyncio.IncompleteReadError(b"", length)
            length -= len(chunk)


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether a JSON value nests more than `limit` lists and objects into each other."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
