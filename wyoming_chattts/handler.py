"""Wyoming events ⇄ `speech`, for one connection.

Two tasks: one reads events all the time, so that a client's going away is noticed at once and
`describe` is answered while audio is written; the other speaks the requests in order. A failure
always sends `error` and closes, with no `audio-stop` that would call the audio whole. Every write
has a deadline, so a peer that does not read costs nobody else anything.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.info import Info
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from .audio import CHANNELS, SAMPLE_WIDTH, OutputRate
from .config import Config
from .errors import BadRequest, Busy, DeadlineExceeded, ShuttingDown, SpeechError
from .logs import PeerLog
from .metrics import Metrics, Timings
from .protocol_limits import EventReader, RawEvent
from .speech import Speech, whole
from .text.ssml import read_ssml
from .voices import Voice, Voices

_LOGGER = logging.getLogger(__name__)

_MAX_QUEUED_REQUESTS = 4
_SSML = "ssml"


@dataclass(slots=True)
class Services:
    """What all connections share."""

    config: Config
    speech: Speech
    voices: Voices
    info: Callable[[], Info]
    metrics: Metrics
    peers: PeerLog
    draining: bool = False


class TextStream:
    """Pieces of text from the reading task to the speaking one."""

    def __init__(self, limit: int, max_pieces: int) -> None:
        """Beyond `limit` characters pieces are dropped; the one that goes over it is kept, so
        that the other side notices."""
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._room = limit
        self._left = max_pieces

    def add(self, text: str) -> None:
        """Adds a piece. Raises `BadRequest` where there were too many."""
        self._left -= 1
        if self._left < 0:
            raise BadRequest("too many pieces of text in one stream")
        if text and self._room >= 0:
            self._room -= len(text)
            self._pieces.put_nowait(text)

    def end(self) -> None:
        """No more will come."""
        self._pieces.put_nowait(None)

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The pieces as they arrive."""
        while (piece := await self._pieces.get()) is not None:
            yield piece


@dataclass(slots=True)
class _Request:
    voice: Voice
    pieces: AsyncGenerator[str, None]
    streamed: bool
    ssml: bool


class Connection:
    """One client."""

    def __init__(
        self,
        services: Services,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
    ) -> None:
        self.address = address
        self._services = services
        self._limits = services.config.server
        self._events = EventReader(reader, self._limits)
        self._writer = writer
        self._requests: asyncio.Queue[_Request] = asyncio.Queue(_MAX_QUEUED_REQUESTS)
        self._stream: TextStream | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.busy = False
        """Whether a request is being spoken or waits for it."""

    async def run(self) -> None:
        """Serves the client until it goes, fails or is told to."""
        self._tasks = tasks = (
            asyncio.create_task(self._speak_all(), name="speaking"),
            asyncio.create_task(self._read_all(), name="reading"),
        )
        failure: SpeechError | None = None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # the speaking task's own answer goes first
            failure = self._failure(next(task for task in tasks if task.done()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # an exception holds the frames it went through, and these hold this connection: with
            # the tasks in it, that would be a cycle, which only the collector gets out of memory
            self._tasks = ()
            # nothing else writes any more, so no audio can follow the error
            if failure is not None:
                await self._send_error(failure)
            await self._close()

    def _failure(self, task: asyncio.Task[None]) -> SpeechError | None:
        """What the client is told of a task's end; None where it went, or was told already."""
        error = None if task.cancelled() else task.exception()
        match error:
            case None | OSError() | EOFError():
                return None
            case SpeechError():
                if isinstance(error, BadRequest):
                    self._services.peers.warn(
                        self.address, "refusing an event of %s: %s", self.address, error
                    )
                failure = error
            case _:
                # a fault in one connection must not touch another
                _LOGGER.error("a connection failed: %s", error, exc_info=error)
                failure = SpeechError("the server made a mistake")
        self._services.metrics.error(failure.code, str(failure))
        return failure

    async def stop(self, error: SpeechError) -> None:
        """Ends the connection now; the client is told why if it speaks with us."""
        if self.busy:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._send_error(error)
        self.abort()

    def abort(self) -> None:
        """Drops the connection without a word, unsent data included."""
        for task in self._tasks:
            task.cancel()
        self._writer.transport.abort()

    async def _read_all(self) -> None:
        while True:
            first = await self._wait_for_event()
            if not first:
                return
            try:
                event = await self._events.read(first)
            except EOFError:
                return
            await self._handle(event)

    async def _wait_for_event(self) -> bytes:
        """First byte of the next event; an idle peer is let go, a silent stream is ended."""
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_timeout_s):
                    return await self._events.wait()
            except TimeoutError:
                if self._stream is not None:
                    raise DeadlineExceeded("the text stream was not ended") from None
                if not self.busy:
                    return b""

    async def _handle(self, event: RawEvent) -> None:
        match event.type:
            case "describe":
                await self._write(self._services.info().event())
            case "ping":
                text = event.data.get("text")
                # half a surrogate pair is a string to JSON, and nothing to UTF-8
                text = text.encode("utf-8", "replace").decode() if isinstance(text, str) else None
                await self._write(Pong(text=text).event())
            case "synthesize":
                # inside a stream it repeats the whole text, for servers that cannot stream
                if self._stream is None:
                    self._enqueue(self._request(event.data, whole(_text(event.data))))
            case "synthesize-start":
                if self._stream is not None:
                    raise BadRequest("synthesize-start inside a stream")
                limit = self._services.config.text.max_chars
                stream = TextStream(limit, self._limits.max_stream_chunks)
                self._enqueue(self._request(event.data, stream.pieces(), streamed=True))
                self._stream = stream
            case "synthesize-chunk":
                if self._stream is None:
                    raise BadRequest("synthesize-chunk outside of a stream")
                self._stream.add(_text(event.data))
            case "synthesize-stop":
                if self._stream is None:
                    raise BadRequest("synthesize-stop outside of a stream")
                self._stream.end()
                self._stream = None
            case _:
                _LOGGER.debug("ignoring an event of type %s", event.type)

    def _request(
        self, data: dict[str, Any], pieces: AsyncGenerator[str, None], *, streamed: bool = False
    ) -> _Request:
        return _Request(self._voice(data), pieces, streamed, data.get("text_format") == _SSML)

    def _voice(self, data: dict[str, Any]) -> Voice:
        voice = data.get("voice")
        if voice is None:
            return self._services.voices.default
        if not isinstance(voice, dict):
            raise BadRequest("voice must be an object")
        names = [voice.get("name"), voice.get("speaker")]
        if any(name is not None and not isinstance(name, str) for name in names):
            raise BadRequest("a voice's name must be text")
        return self._services.voices.find(names[0])

    def _enqueue(self, request: _Request) -> None:
        if self._services.draining:
            self._services.metrics.request(ShuttingDown.code)
            raise ShuttingDown("the server is stopping")
        try:
            self._requests.put_nowait(request)
        except asyncio.QueueFull:
            self._services.metrics.request(Busy.code)
            raise Busy("too many requests on one connection") from None
        self.busy = True

    async def _speak_all(self) -> None:
        while True:
            request = await self._requests.get()
            await self._speak(request)
            if self._requests.empty() and self._stream is None:
                self.busy = False
                if self._services.draining:
                    return

    async def _speak(self, request: _Request) -> None:
        timings = Timings()
        begin = time.monotonic()
        config = self._services.config
        audio = _AudioWriter(self._write, config.stream.chunk_ms, config.audio.rate)
        outcome = "gone"
        try:
            pieces, voice = request.pieces, request.voice
            if request.ssml:
                # a document can be read only when it is whole
                text, voice = _from_ssml("".join([piece async for piece in pieces]), voice)
                pieces = whole(text)
            await self._services.speech.speak(pieces, voice, audio.add, timings=timings)
            await audio.finish()
            if request.streamed:
                await self._write(SynthesizeStopped().event())
            outcome = "ok"
        except SpeechError as error:
            outcome = error.code
            raise
        finally:
            await request.pieces.aclose()
            total = time.monotonic() - begin
            self._services.metrics.request(outcome, timings, total)
            _log_request(request, timings, outcome, total, config.log.slow_s)

    async def _write(self, event: Event) -> None:
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await async_write_event(event, self._writer)
        except TimeoutError:
            self._services.peers.warn(
                self.address, "%s does not read what it asked for; letting it go", self.address
            )
            self._writer.transport.abort()
            raise ConnectionAbortedError("the client does not read") from None

    async def _send_error(self, error: SpeechError) -> None:
        with suppress(OSError):
            await self._write(Error(text=str(error), code=error.code).event())

    async def _close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._writer.wait_closed()
        except (OSError, TimeoutError) as error:
            # the stream keeps the error, and the error all that it went through
            error.__traceback__ = None
            self._writer.transport.abort()


class _AudioWriter:
    """Sends PCM as one `audio-start`, chunks of even length with running times, `audio-stop`."""

    def __init__(self, write: Callable[[Event], Any], chunk_ms: int, rate: int) -> None:
        self._write = write
        self._rate = OutputRate(rate)
        self._bytes_per_second = rate * SAMPLE_WIDTH * CHANNELS
        self._chunk = chunk_ms * rate // 1000 * SAMPLE_WIDTH
        self._buffer = bytearray()
        self._sent = 0
        self._started = False

    async def add(self, pcm: bytes) -> None:
        """Sends all whole chunks."""
        if not self._started:
            self._started = True
            start = AudioStart(self._rate.rate, SAMPLE_WIDTH, CHANNELS, timestamp=0)
            await self._write(start.event())
        self._buffer += self._rate.convert(pcm)
        await self._send_chunks()

    async def _send_chunks(self) -> None:
        while len(self._buffer) >= self._chunk:
            await self._send(bytes(self._buffer[: self._chunk]))
            del self._buffer[: self._chunk]

    async def finish(self) -> None:
        """Sends the rest, and `audio-stop`."""
        self._buffer += self._rate.convert(b"", last=True)
        await self._send_chunks()
        if self._buffer:
            await self._send(bytes(self._buffer))
        await self._write(AudioStop(timestamp=self._time()).event())

    async def _send(self, pcm: bytes) -> None:
        chunk = AudioChunk(self._rate.rate, SAMPLE_WIDTH, CHANNELS, pcm, timestamp=self._time())
        self._sent += len(pcm)
        await self._write(chunk.event())

    def _time(self) -> int:
        return round(1000 * self._sent / self._bytes_per_second)


def _from_ssml(source: str, voice: Voice) -> tuple[str, Voice]:
    """The text of a document, and the voice at the rate that it asks for."""
    document = read_ssml(source)
    if document.speed is not None:
        voice = replace(voice, style=replace(voice.style, speed=document.speed))
    return document.text, voice


def _text(data: dict[str, Any]) -> str:
    text = data.get("text")
    if not isinstance(text, str):
        raise BadRequest("text must be text")
    return text


def _log_request(
    request: _Request, timings: Timings, outcome: str, total: float, slow_s: float
) -> None:
    first = timings.first_audio
    rtf = total / timings.audio if timings.audio else 0.0
    fields = {
        "outcome": outcome,
        "voice": request.voice.name,
        "fallback": timings.fallback,
        "characters": timings.characters,
        "segments": timings.segments,
        "cached": timings.cache_hits,
        "shared": timings.shared,
        "first_audio_ms": None if first is None else round(1000 * first),
        "total_ms": round(1000 * total),
        "audio_s": round(timings.audio, 3),
        "rtf": round(rtf, 3),
    }
    _LOGGER.info(
        "%s: voice %s%s, %d characters, %d segments (%d cached, %d shared), first audio %s, "
        "total %.0f ms, audio %.2f s, RTF %.2f",
        outcome,
        request.voice.name,
        " (fallback)" if timings.fallback else "",
        timings.characters,
        timings.segments,
        timings.cache_hits,
        timings.shared,
        "-" if first is None else f"{1000 * first:.0f} ms",
        1000 * total,
        timings.audio,
        rtf,
        extra={"fields": fields},
    )
    waited = (total if first is None else first) - timings.first_text
    if outcome != "gone" and waited > slow_s:
        parts = {
            "front end": timings.front_end,
            "queue": timings.queued or 0.0,
            "prefill": timings.prefill,
            "decode": timings.decode,
            "codec": timings.codec,
            "listener": timings.listener,
        }
        _LOGGER.warning(
            "slow: no audio for %.1f s; of the whole request's time: %s",
            waited,
            ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items()),
            extra={"fields": {"slow": {k: round(v, 3) for k, v in parts.items()}}},
        )
