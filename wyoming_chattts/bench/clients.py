"""Clients of all sorts for `bench faults` and `bench soak`: good ones, and those that a server must
survive."""

import asyncio
import random
from dataclasses import dataclass
from urllib.parse import urlparse

from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)

GIVE_UP_S = 90.0
_GARBAGE = (
    b"\n",
    b"not json\n",
    b"[1, 2]\n",
    b'{"type": 5}\n',
    b'{"type": "synthesize", "data": {"text": 5}}\n',
    b'{"type": "synthesize", "data_length": 99999999}\n',
    b'{"type": "synthesize-chunk", "data": {"text": "x"}}\n',
    b'{"type": "describe", "payload_length": -1}\n',
    b'{"type": "' + b"x" * 300_000 + b'"}\n',
    b"\x00\xff\xfe\n",
    b'{"a":' * 20_000 + b"\n",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended: `ok`, an error's code, `closed` by the server, `silent` (never), or what
    the client did itself. `pcm` is what was heard."""

    outcome: str
    pcm: bytes = b""


async def speak(uri: str, text: str, *, streamed: bool = False) -> Answer:
    """A request as Home Assistant makes it."""
    pcm = bytearray()
    try:
        async with asyncio.timeout(GIVE_UP_S), AsyncClient.from_uri(uri) as client:
            if streamed:
                await client.write_event(SynthesizeStart().event())
                for i in range(0, len(text), 17):
                    await client.write_event(SynthesizeChunk(text[i : i + 17]).event())
                await client.write_event(SynthesizeStop().event())
            else:
                await client.write_event(Synthesize(text).event())
            while (event := await client.read_event()) is not None:
                if AudioChunk.is_type(event.type):
                    pcm += AudioChunk.from_event(event).audio
                elif Error.is_type(event.type):
                    return Answer(Error.from_event(event).code or "error", bytes(pcm))
                elif (SynthesizeStopped if streamed else AudioStop).is_type(event.type):
                    return Answer("ok", bytes(pcm))
    except TimeoutError:
        return Answer("silent", bytes(pcm))
    except OSError:
        pass
    return Answer("closed", bytes(pcm))


async def describe_s(uri: str) -> float | None:
    """Seconds that a describe takes; None where nobody answers."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    try:
        async with asyncio.timeout(10), AsyncClient.from_uri(uri) as client:
            await client.write_event(Describe().event())
            event = await client.read_event()
            return loop.time() - begin if event and Info.is_type(event.type) else None
    except (OSError, TimeoutError):
        return None


async def vanish(uri: str, text: str, chance: random.Random) -> Answer:
    """Asks, hears a little, and is gone."""
    try:
        async with asyncio.timeout(GIVE_UP_S), AsyncClient.from_uri(uri) as client:
            await client.write_event(Synthesize(text).event())
            for _ in range(chance.randrange(4)):
                if await client.read_event() is None:
                    break
    except (OSError, TimeoutError):
        pass
    return Answer("went away")


async def garbage(uri: str, chance: random.Random) -> Answer:
    """Sends what is no event, and waits for the answer."""
    return await _raw(uri, [chance.choice(_GARBAGE)])


async def trickle(uri: str, text: str, chance: random.Random) -> Answer:
    """Sends a good event byte by byte."""
    event = b'{"type": "synthesize", "data": {"text": "' + text.encode() + b'"}}\n'
    return await _raw(uri, [bytes([byte]) for byte in event[: chance.randrange(5, 60)]], 0.005)


async def never_reads(uri: str, text: str, chance: random.Random) -> Answer:
    """Asks for much, and reads nothing of it for a while."""
    address = urlparse(uri)
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1024)
        try:
            event = b'{"type": "synthesize", "data": {"text": "' + (text * 3).encode() + b'"}}\n'
            writer.write(event)
            await writer.drain()
            await asyncio.sleep(chance.uniform(0.2, 1.5))
        finally:
            writer.transport.abort()
            del reader
    except OSError:
        pass
    return Answer("went away")


async def _raw(uri: str, pieces: list[bytes], pause_s: float = 0.0) -> Answer:
    address = urlparse(uri)
    try:
        async with asyncio.timeout(GIVE_UP_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
                writer.write_eof()
                answer = await reader.read()
            finally:
                writer.transport.abort()
        return Answer("told" if b'"bad_request"' in answer else "closed")
    except TimeoutError:
        return Answer("silent")
    except OSError:
        return Answer("closed")
