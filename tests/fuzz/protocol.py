"""The protocol handler on bytes alone: what a fuzzer drives, and what its corpus is replayed with.

A connection gets all bytes and then the end of the stream, with no socket in between. Speech is
quick and says a tenth of a second a piece, so that the time goes into the protocol. What must hold:
`connection.run()` ends, nothing is logged as a fault of the server, what was written is whole
events in an allowed order, and nothing is left running.
"""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

from wyoming_chattts.config import Config, ServerConfig, TextConfig
from wyoming_chattts.errors import TextTooLong
from wyoming_chattts.handler import Connection, Services
from wyoming_chattts.logs import PeerLog
from wyoming_chattts.metrics import Metrics, Timings
from wyoming_chattts.server import Server
from wyoming_chattts.speech import Speech
from wyoming_chattts.voices import Voice

LIMITS = ServerConfig(max_event_bytes=4096, max_payload_bytes=8192, max_stream_chunks=64)
CONFIG = Config(server=LIMITS, text=TextConfig(max_chars=200))
GIVE_UP_S = 20.0
ALLOWED_CODES = {"bad_request", "busy", "text_too_long", "timeout"}


class Broken(AssertionError):
    """The handler did what it must not."""


class _Faults(logging.Handler):
    """Keeps what the server calls its own mistake."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class _Wire(asyncio.Transport):
    """The client's side of a connection: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._protocol: asyncio.StreamReaderProtocol | None = None
        self._closed = False

    def attach(self, protocol: asyncio.StreamReaderProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed and self._protocol is not None:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close


class _QuickSpeech:
    """Speaks a tenth of a second a piece, and bounds texts as the real one does."""

    async def speak(
        self, pieces: AsyncIterator[str], voice: Voice, sink: Any, *, timings: Timings
    ) -> Timings:
        async for piece in pieces:
            timings.characters += len(piece)
            if timings.characters > CONFIG.text.max_chars:
                raise TextTooLong("the text is too long")
            await sink(bytes(4800))
        await sink(bytes(4800))
        return timings


class Target:
    """Runs inputs one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._make())
        self._faults = _Faults()
        logging.getLogger("wyoming_chattts").addHandler(self._faults)
        logging.getLogger("asyncio").addHandler(self._faults)

    @staticmethod
    async def _make() -> Server:
        return Server(CONFIG)

    def close(self) -> None:
        """Ends the loop."""
        for name in ("wyoming_chattts", "asyncio"):
            logging.getLogger(name).removeHandler(self._faults)
        self._loop.run_until_complete(self._server.speech.close())
        self._loop.run_until_complete(self._server._cache.close())
        self._loop.close()

    def run(self, data: bytes) -> list[str]:
        """Types of the events that come back. Raises `Broken`."""
        self._faults.lines.clear()
        written = self._loop.run_until_complete(self._serve(data))
        if self._faults.lines:
            raise Broken(self._faults.lines[0])
        return check(written)

    async def _serve(self, data: bytes) -> bytes:
        server = self._server
        services = Services(
            CONFIG,
            cast(Speech, _QuickSpeech()),
            server._voices,
            server.info,
            Metrics(list),
            PeerLog(),
        )
        reader = asyncio.StreamReader(limit=LIMITS.max_event_bytes)
        protocol = asyncio.StreamReaderProtocol(reader)
        wire = _Wire()
        wire.attach(protocol)
        writer = asyncio.StreamWriter(wire, protocol, reader, asyncio.get_running_loop())
        reader.feed_data(data)
        reader.feed_eof()
        connection = Connection(services, reader, writer, "127.0.0.1")
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await connection.run()
        except TimeoutError:
            raise Broken("the connection did not end") from None
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise Broken(f"left running: {left}")
        return bytes(wire.written)


def check(written: bytes) -> list[str]:
    """Types of the events in what a server wrote. Raises `Broken` for an order that is not
    allowed."""
    types: list[str] = []
    stream = io.BytesIO(written)
    inside = False
    while line := stream.readline():
        header = json.loads(line)
        data = json.loads(stream.read(header.get("data_length") or 0) or b"{}")
        payload = stream.read(header.get("payload_length") or 0)
        if len(payload) != (header.get("payload_length") or 0):
            raise Broken("an event is cut off")
        kind = header["type"]
        if types[-1:] == ["error"]:
            raise Broken(f"{kind} after an error")
        if kind == "error" and data.get("code") not in ALLOWED_CODES:
            raise Broken(f"an error with the code {data.get('code')}")
        if kind == "audio-start" and inside:
            raise Broken("audio-start inside audio")
        if kind in ("audio-chunk", "audio-stop") and not inside:
            raise Broken(f"{kind} outside of audio")
        if kind == "synthesize-stopped" and types[-1:] != ["audio-stop"]:
            raise Broken("synthesize-stopped without audio before it")
        if kind == "audio-chunk" and (len(payload) % 2 or not payload):
            raise Broken("audio of an odd length")
        inside = kind in ("audio-start", "audio-chunk") or (
            inside and kind in ("info", "pong", "error")
        )
        types.append(kind)
    return types
