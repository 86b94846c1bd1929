"""A text, whole or arriving in pieces, and a voice → a stream of PCM.

Text is cut into segments and brought into its spoken form in the text thread; each segment is a
flight (see `flights`). Segments of one request are made ahead and played in order. Runs on the
event loop.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from .audio import NOTHING_TO_SAY_MS, duration_s, silence
from .cache import SegmentCache
from .config import Config
from .engine.base import STEPS_PER_SECOND, FloatAudio, expected_steps
from .errors import DeadlineExceeded, EngineFailed, ModelUnavailable, SpeechError, TextTooLong
from .flights import Flight, Flights
from .loudness import Loudness, apply_gain
from .metrics import Timings
from .text.frontend import FrontEnd, Spoken
from .text.segment import Segmenter
from .voices import Voice
from .worker import NEVER, Listener, Worker

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

Sink = Callable[[bytes], Awaitable[None]]
"""Takes PCM; awaits where the listener is slow."""


@dataclass(frozen=True, slots=True)
class _Segment:
    flight: Flight
    loudness_key: str | None
    pause: str
    expected_s: float


class Speech:
    """Speaks texts. `worker` may be set and replaced while requests run; each request keeps the
    one it began with."""

    def __init__(self, config: Config, cache: SegmentCache) -> None:
        self._config = config
        self.flights = Flights(config, cache)
        self.loudness = Loudness(config.audio.loudness_lufs, config.data_path / "loudness.json")
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._front_end: FrontEnd | None = None
        self.worker: Worker | None = None
        self.fallback: Worker | None = None
        self.active = 0
        self.asleep = False
        """The model was unloaded, and is loaded again once `needed` is set."""
        self.needed = asyncio.Event()
        self.loaded = asyncio.Event()

    async def prepare(self) -> None:
        """Loads grammars and tables in the text thread."""
        await self._in_text_thread(lambda: self._front().warm_up())

    async def close(self) -> None:
        """Waits for cache writes, and ends what is left."""
        await self.flights.close()
        self._text_thread.shutdown(wait=False)

    async def speak(
        self,
        pieces: AsyncIterator[str],
        voice: Voice,
        sink: Sink,
        *,
        background: bool = False,
        remember: bool = True,
        timings: Timings | None = None,
    ) -> Timings:
        """Speaks `pieces` of text into `sink`; returns when all audio was taken.

        `background` marks a warm-up; `remember` counts the phrases for later ones.
        Raises a `SpeechError`; what was sent before it stands. Cancelling stops all work that
        nobody else listens to.
        """
        timings = timings or Timings()
        self.active += 1
        request = _Request(
            self,
            self._config,
            voice,
            sink,
            background,
            timings,
            remember=remember and not background,
            language=self._config.text.language,
        )
        try:
            await request.run(pieces)
        finally:
            self.active -= 1
        return timings

    async def obtain_worker(self) -> Worker:
        """ChatTTS's worker where there is one, else the fallback's. Raises `ModelUnavailable`.

        Wakes a model that was unloaded, and waits for it if that is set.
        """
        if self.worker is None and self.asleep:
            self.needed.set()
            if self._config.engine.when_unloaded == "wait" or self.fallback is None:
                await self.loaded.wait()
        worker = self.worker or self.fallback
        if worker is None:
            raise ModelUnavailable("the ChatTTS model is not loaded, and the fallback voice is off")
        return worker

    async def spoken(self, text: str, language: str) -> Spoken:
        """The front end's answer for one segment."""
        return await self._in_text_thread(lambda: self._front().speak(text, language))

    async def measure(self, loudness_key: str, chunks: list[bytes]) -> None:
        """Lets a voice's loudness be measured, in the text thread."""
        if self.loudness.known(loudness_key):
            return
        audio: FloatAudio = np.frombuffer(b"".join(chunks), dtype="<i2").astype(np.float32)
        audio /= np.float32(32768)
        await self._in_text_thread(lambda: self.loudness.measure(loudness_key, audio))

    def _front(self) -> FrontEnd:
        if self._front_end is None:
            text = self._config.text
            self._front_end = FrontEnd(
                control_tokens=text.control_tokens, replacements=text.replacements
            )
        return self._front_end

    async def _in_text_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._text_thread, call)


@dataclass(slots=True)
class _Request:
    """One text on its way: a task reads and cuts it, the caller's task plays segments in order."""

    speech: Speech
    config: Config
    voice: Voice
    sink: Sink
    background: bool
    timings: Timings
    remember: bool = True
    begin: float = 0.0
    text_ended: float | None = None
    played_until: float = 0.0
    """Loop time at which a listener that plays at once runs dry."""
    queued_s: float = 0.0
    """About how long the segments last that wait to be played."""
    playing_s: float = 0.0
    """About how much of the segment being played is still to be made."""
    language: str = "en"
    skipped: str | None = None
    """Language of a segment that nobody could say."""
    worker: Worker | None = None
    listener: Listener = field(default_factory=Listener)
    gains_db: dict[str, float] = field(default_factory=dict)
    """Gain by loudness key, as it was when first needed: it must not change within a request."""
    flights: list[Flight] = field(default_factory=list)

    async def run(self, pieces: AsyncIterator[str]) -> None:
        loop = asyncio.get_running_loop()
        self.begin = loop.time()
        ready: asyncio.Queue[_Segment | SpeechError | None] = asyncio.Queue(
            self.config.stream.segments_ahead
        )
        arrived: asyncio.Queue[str | SpeechError | None] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._arrive(pieces, arrived), name="text arriving"),
            asyncio.create_task(self._cut(arrived, ready), name="text cutting"),
        ]
        try:
            await self._play(ready)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for flight in self.flights:
                self.speech.flights.leave(flight)
            self.timings.total = loop.time() - self.begin

    async def _arrive(
        self, pieces: AsyncIterator[str], arrived: "asyncio.Queue[str | SpeechError | None]"
    ) -> None:
        """Takes pieces as they come, so that the end of the text is known when it is there."""
        text = self.config.text
        try:
            async for piece in pieces:
                if not self.timings.characters:
                    self.timings.first_text = asyncio.get_running_loop().time() - self.begin
                arrived.put_nowait(self._bounded(piece))
                if self.timings.characters > text.max_chars:
                    _LOGGER.warning("a text is cut at %d characters", text.max_chars)
                    break
        except Exception as error:  # noqa: BLE001 - raised where the request is played
            arrived.put_nowait(_as_speech_error(error))
            return
        self.text_ended = asyncio.get_running_loop().time()
        arrived.put_nowait(None)

    async def _cut(
        self,
        arrived: "asyncio.Queue[str | SpeechError | None]",
        ready: "asyncio.Queue[_Segment | SpeechError | None]",
    ) -> None:
        """Cuts the text into segments and sets each one flying."""
        text = self.config.text
        segmenter = Segmenter(text.segment_chars, text.first_segment_chars)
        idle_s = text.flush_ms / 1000 or None
        flushed = True
        try:
            while True:
                try:
                    async with asyncio.timeout(None if flushed else idle_s):
                        piece = await arrived.get()
                except TimeoutError:
                    # the stream pauses: what is there is spoken
                    piece, segments, flushed = "", segmenter.finish(), True
                else:
                    if isinstance(piece, SpeechError):
                        raise piece
                    segments = segmenter.finish() if piece is None else segmenter.feed(piece)
                    flushed = False
                for segment in segments:
                    await self._segment(segment, ready)
                if piece is None:
                    await ready.put(None)
                    return
        except Exception as error:  # noqa: BLE001 - raised where the request is played
            await ready.put(_as_speech_error(error))

    async def _worker_for(self, spoken: Spoken) -> Worker | None:
        """Who says a segment; None if nobody here speaks its language."""
        if self.worker is None:
            self.worker = await self._by_deadline(self.speech.obtain_worker(), waits_for_text=False)
        if not spoken.foreign:
            self.language = spoken.language
            self.timings.fallback |= not self.worker.info.cacheable
            return self.worker
        if self.config.fallback.languages and self.speech.fallback is not None:
            self.timings.fallback = True
            return self.speech.fallback
        _LOGGER.warning("a sentence is left out: no voice for its language (%s)", spoken.language)
        self.skipped = spoken.language
        return None

    def _bounded(self, piece: str) -> str:
        """The piece, cut where the text gets too long. Raises `TextTooLong` if that is not set."""
        text = self.config.text
        room = max(0, text.max_chars - self.timings.characters)
        self.timings.characters += len(piece)
        if len(piece) > room and not text.truncate:
            raise TextTooLong(f"the text has more than {text.max_chars} characters")
        return piece[:room]

    async def _segment(
        self, text: str, ready: "asyncio.Queue[_Segment | SpeechError | None]"
    ) -> None:
        begin = asyncio.get_running_loop().time()
        spoken = await self._by_deadline(
            self.speech.spoken(text, self.language), waits_for_text=False
        )
        self.timings.front_end += asyncio.get_running_loop().time() - begin
        if not spoken.text:
            return
        worker = await self._worker_for(spoken)
        if worker is None:
            return
        now = asyncio.get_running_loop().time()
        first = self.timings.segments == 0
        due = now if first else max(now, self.played_until) + self.playing_s + self.queued_s
        expected_s = expected_steps(spoken.text) / STEPS_PER_SECOND
        self.queued_s += expected_s
        flight = self.speech.flights.join(
            worker,
            spoken,
            self.voice,
            due=NEVER if self.background else due,
            admitted=not first,
            background=self.background,
            listener=self.listener,
        )
        self.flights.append(flight)
        self.timings.segments += 1
        if self.remember:
            self.speech.flights.remember(text, self.voice)
        # the fallback voice has a level of its own
        key = _loudness_key(self.voice, worker) if worker.info.cacheable else None
        await ready.put(_Segment(flight, key, spoken.pause, expected_s))

    async def _play(self, ready: "asyncio.Queue[_Segment | SpeechError | None]") -> None:
        """Sends segments in order, with a pause between them."""
        pause = ""
        while True:
            item = await self._by_deadline(ready.get(), waits_for_text=True)
            if item is None:
                break
            if isinstance(item, SpeechError):
                raise item
            if pause:
                await self._send(
                    silence(self.config.audio.pause_ms * (1.0 if pause == "。" else 0.4))
                )
            self.queued_s -= item.expected_s
            self.playing_s = item.expected_s
            await self._play_segment(item.flight, item.loudness_key)
            self.playing_s = 0.0
            pause = item.pause
        if self.timings.first_audio is None:
            if self.skipped:
                raise ModelUnavailable(f"there is no voice for the language {self.skipped}")
            await self._send(silence(NOTHING_TO_SAY_MS))

    async def _play_segment(self, flight: Flight, loudness_key: str | None) -> None:
        audio = flight.listen()
        loudness = self.speech.loudness
        gain_db = 0.0
        if loudness_key is not None:
            measured = self.gains_db.setdefault(loudness_key, loudness.gain_db(loudness_key))
            gain_db = self.voice.gain_db + measured
        try:
            while True:
                try:
                    pcm = await self._by_deadline(anext(audio), waits_for_text=False)
                except StopAsyncIteration:
                    break
                await self._send(apply_gain(pcm, gain_db))
        finally:
            await audio.aclose()
        job = flight.job
        if job is not None and job.started_at is not None:
            if self.timings.queued is None:
                self.timings.queued = job.started_at - job.submitted_at
            self.timings.prefill += job.prefill_s
            self.timings.decode += job.decode_s
            self.timings.codec += job.codec_s
        self.timings.cache_hits += flight.from_cache
        self.timings.shared += flight.listeners > 1
        if loudness_key is not None:
            await self.speech.measure(loudness_key, flight.chunks)
        self.flights.remove(flight)
        self.speech.flights.leave(flight)

    async def _send(self, pcm: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if self.timings.first_audio is None:
            self.timings.first_audio = now - self.begin
        seconds = duration_s(len(pcm))
        self.timings.audio += seconds
        self.played_until = max(now, self.played_until) + seconds
        self.playing_s = max(0.0, self.playing_s - seconds)
        await self.sink(pcm)
        self.timings.listener += asyncio.get_running_loop().time() - now

    async def _by_deadline(self, step: Awaitable[_T], *, waits_for_text: bool) -> _T:
        """Awaits a step within the deadlines of first audio and of the whole request.

        A writer who is slow to go on costs no deadline; the speech that it waits for does.
        """
        loop = asyncio.get_running_loop()
        deadline = self.config.deadline
        limits: list[float] = []
        if self.text_ended is not None:
            limits.append(self.text_ended + deadline.total_s + self.timings.listener)
        if not waits_for_text:
            limits.append(loop.time() + deadline.first_audio_s)
        try:
            async with asyncio.timeout_at(min(limits, default=None)):
                return await step
        except TimeoutError:
            late = "first audio" if self.timings.first_audio is None else "the whole text"
            raise DeadlineExceeded(f"{late} took longer than its deadline") from None


def _loudness_key(voice: Voice, worker: Worker) -> str:
    """What a voice's level depends on; its name does not matter, and may come to mean another."""
    codes = voice.recording.codes if voice.recording is not None else b""
    who = hashlib.sha256((voice.embedding or b"") + codes).hexdigest()[:16]
    return f"{who} {worker.info.identity}"


def _as_speech_error(error: Exception) -> SpeechError:
    """The error itself, or for a fault of ours one that may go to the client."""
    if isinstance(error, SpeechError):
        return error
    _LOGGER.error("the text could not be prepared: %s", error, exc_info=error)
    return EngineFailed("the text could not be prepared")


async def whole(text: str) -> AsyncGenerator[str, None]:
    """A text that is there at once, as pieces."""
    yield text
