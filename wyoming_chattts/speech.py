"""A text, whole or arriving in pieces, and a voice → a stream of PCM.

Segments are looked up in the cache or made by the worker; the same segment asked for twice at once
is made once, and both hear it as it is made (a *flight*). Segments of one request are made ahead
and played in order. Runs on the event loop; text work and cache files have threads of their own.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from .audio import NOTHING_TO_SAY_MS, SegmentAudio, duration_s, silence
from .cache import SegmentCache, cache_key
from .config import Config
from .engine.base import (
    EMPTY_AUDIO,
    STEPS_PER_SECOND,
    End,
    Mel,
    Prompt,
    Sampling,
    expected_steps,
)
from .errors import (
    DeadlineExceeded,
    EngineFailed,
    ModelUnavailable,
    ShuttingDown,
    SpeechError,
    TextTooLong,
)
from .text.frontend import VERSION as FRONT_END_VERSION
from .text.frontend import FrontEnd, Spoken
from .text.segment import Segmenter
from .voices import Voice
from .worker import NEVER, Job, Worker

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

_KEY_FORMAT = 1
_MEL_BINS = 100

Sink = Callable[[bytes], Awaitable[None]]
"""Takes PCM; awaits where the listener is slow."""


@dataclass(slots=True)
class Timings:
    """Where the time of a request went, seconds; `first_audio` is None until there is some."""

    characters: int = 0
    segments: int = 0
    cache_hits: int = 0
    shared: int = 0
    audio: float = 0.0
    first_audio: float | None = None
    total: float = 0.0
    fallback: bool = False


@dataclass(eq=False)
class Flight:
    """One segment being made, for whoever listens."""

    key: str
    chunks: list[bytes] = field(default_factory=list)
    done: bool = False
    error: SpeechError | None = None
    from_cache: bool = False
    listeners: int = 0
    job: Job | None = None
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, pcm: bytes) -> None:
        """Adds audio."""
        if pcm:
            self.chunks.append(pcm)
            self._notify()

    def end(self, error: SpeechError | None = None) -> None:
        """No more will come."""
        self.done, self.error = True, error
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """All audio from the beginning, as it is made. Raises the flight's error."""
        at = 0
        while True:
            while at < len(self.chunks):
                yield self.chunks[at]
                at += 1
            if self.done:
                if self.error is not None:
                    # a new object: an exception must not collect the tracebacks of all listeners
                    raise type(self.error)(*self.error.args)
                return
            await self.changed.wait()


@dataclass(frozen=True, slots=True)
class _Segment:
    flight: Flight
    pause: str
    expected_s: float


class Speech:
    """Speaks texts. `worker` may be set and replaced while requests run; each request keeps the
    one it began with."""

    def __init__(self, config: Config, cache: SegmentCache) -> None:
        self._config = config
        self._cache = cache
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._front_end: FrontEnd | None = None
        self._flights: dict[str, Flight] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.worker: Worker | None = None
        self.fallback: Worker | None = None
        self.active = 0

    async def prepare(self) -> None:
        """Loads grammars and tables in the text thread."""
        await self._in_text_thread(lambda: self._front().warm_up())

    async def close(self) -> None:
        """Waits for cache writes, and ends flights that are left."""
        for flight in list(self._flights.values()):
            if flight.task is not None:
                flight.task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._text_thread.shutdown(wait=False)

    async def speak(
        self,
        pieces: AsyncIterator[str],
        voice: Voice,
        sink: Sink,
        *,
        background: bool = False,
        timings: Timings | None = None,
    ) -> Timings:
        """Speaks `pieces` of text into `sink`; returns when all audio was taken.

        Raises a `SpeechError`; what was sent before it stands. Cancelling stops all work that
        nobody else listens to.
        """
        timings = timings or Timings()
        self.active += 1
        request = _Request(self, self._config, voice, sink, background, timings)
        try:
            await request.run(pieces)
        finally:
            self.active -= 1
        return timings

    def choose_worker(self) -> Worker:
        """ChatTTS's worker where there is one, else the fallback's. Raises `ModelUnavailable`."""
        worker = self.worker or self.fallback
        if worker is None:
            raise ModelUnavailable("the ChatTTS model is not loaded, and the fallback voice is off")
        return worker

    async def spoken(self, text: str, language: str) -> Spoken:
        """The front end's answer for one segment."""
        return await self._in_text_thread(lambda: self._front().speak(text, language))

    def flight(
        self,
        worker: Worker,
        spoken: Spoken,
        voice: Voice,
        *,
        due: float,
        admitted: bool,
        background: bool,
    ) -> Flight:
        """Joins the flight of a segment, or begins one. Leave it with `leave()`."""
        prompt, sampling = self._prompt(spoken, voice)
        key = self._key(worker, prompt, sampling)
        flight = self._flights.get(key)
        if flight is None:
            flight = Flight(key)
            self._flights[key] = flight
            flight.task = asyncio.create_task(
                self._fly(flight, worker, prompt, sampling, due, admitted, background),
                name="segment",
            )
        elif flight.job is not None and not background:
            # somebody listens now to what was warm-up, or sooner than the first one needed it
            flight.job.background = False
            flight.job.due = min(flight.job.due, due)
        flight.listeners += 1
        return flight

    def leave(self, flight: Flight) -> None:
        """A listener goes; the last one ends the work."""
        flight.listeners -= 1
        if flight.listeners == 0 and not flight.done and flight.task is not None:
            self._flights.pop(flight.key, None)
            flight.task.cancel()

    def remember(self, text: str, voice: Voice) -> None:
        """Counts a phrase for later warm-ups, in the background."""
        self._in_background(self._cache.remember(text.strip(), voice.name))

    def _prompt(self, spoken: Spoken, voice: Voice) -> tuple[Prompt, Sampling]:
        s = self._config.sampling
        prompt = Prompt(spoken.text, voice.embedding, voice.style, s.refine, spoken.language)
        sampling = Sampling(
            temperature=voice.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            repetition_penalty=s.repetition_penalty,
            min_steps=s.min_steps,
            max_steps=s.max_steps,
            seed=s.seed,
        )
        return prompt, sampling

    def _key(self, worker: Worker, prompt: Prompt, sampling: Sampling) -> str:
        mel = self._stores_mel(worker)
        style = prompt.style
        return cache_key(
            {
                "format": _KEY_FORMAT,
                "engine": worker.info.identity,
                "front_end": FRONT_END_VERSION,
                "text": prompt.text,
                "language": prompt.language if not worker.info.cacheable else None,
                "speaker": prompt.speaker.hex() if prompt.speaker is not None else None,
                "style": [style.speed, style.oral, style.laugh, style.pause],
                "refine": prompt.refine,
                "sampling": [
                    sampling.temperature,
                    sampling.top_p,
                    sampling.top_k,
                    sampling.repetition_penalty,
                    sampling.min_steps,
                    sampling.max_steps,
                    sampling.seed,
                ],
                "output": "mel" if mel else self._config.audio.model_dump(),
            }
        )

    def _stores_mel(self, worker: Worker) -> bool:
        return self._config.cache.granularity == "mel" and worker.info.has_mel

    async def _fly(
        self,
        flight: Flight,
        worker: Worker,
        prompt: Prompt,
        sampling: Sampling,
        due: float,
        admitted: bool,
        background: bool,
    ) -> None:
        try:
            if worker.info.cacheable and await self._from_cache(flight, worker):
                return
            flight.job = worker.submit(
                prompt, sampling, due=due, admitted=admitted, background=background
            )
            await self._from_engine(flight, worker, flight.job)
        except SpeechError as error:
            flight.end(error)
        except asyncio.CancelledError:
            flight.end(ShuttingDown("the segment was given up"))
            raise
        finally:
            if flight.job is not None:
                worker.cancel(flight.job)
            if self._flights.get(flight.key) is flight:
                del self._flights[flight.key]

    async def _from_cache(self, flight: Flight, worker: Worker) -> bool:
        value = await self._cache.get(flight.key)
        if value is None:
            return False
        flight.from_cache = True
        if not self._stores_mel(worker):
            flight.push(value)
        else:
            mel: Mel = np.frombuffer(value, dtype=np.float16).reshape(_MEL_BINS, -1)
            shape = SegmentAudio(self._config.audio)
            flight.push(shape.push(await worker.vocode(mel)) + shape.finish())
        flight.end()
        return True

    async def _from_engine(self, flight: Flight, worker: Worker, job: Job) -> None:
        shape = SegmentAudio(self._config.audio)
        mels: list[Mel] = []
        end: End | None = None
        async for output in job:
            if output.audio.size:
                flight.push(shape.push(output.audio))
            if output.mel is not None:
                mels.append(output.mel)
            end = output.end
        flight.push(shape.finish())
        if not flight.chunks:
            raise EngineFailed("the engine made no sound for a segment")
        if end is End.LIMIT:
            _LOGGER.warning("a segment was cut at %d steps without an end", job.sampling.max_steps)
        flight.end()
        if end is End.COMPLETE and worker.info.cacheable:
            value = _mel_bytes(mels) if self._stores_mel(worker) else b"".join(flight.chunks)
            self._in_background(self._cache.put(flight.key, value))

    def _in_background(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run(), name="cache write")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _front(self) -> FrontEnd:
        if self._front_end is None:
            self._front_end = FrontEnd(control_tokens=self._config.text.control_tokens)
        return self._front_end

    async def _in_text_thread(self, call: Callable[[], Spoken | None]) -> Spoken:
        result = await asyncio.get_running_loop().run_in_executor(self._text_thread, call)
        return result if result is not None else Spoken("", "en", "")


@dataclass(slots=True)
class _Request:
    """One text on its way: a task reads and cuts it, the caller's task plays segments in order."""

    speech: Speech
    config: Config
    voice: Voice
    sink: Sink
    background: bool
    timings: Timings
    begin: float = 0.0
    text_ended: float | None = None
    played_until: float = 0.0
    """Loop time at which a listener that plays at once runs dry."""
    queued_s: float = 0.0
    """About how long the segments last that wait to be played."""
    language: str = "en"
    worker: Worker | None = None
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
                self.speech.leave(flight)
            self.timings.total = loop.time() - self.begin

    async def _arrive(
        self, pieces: AsyncIterator[str], arrived: "asyncio.Queue[str | SpeechError | None]"
    ) -> None:
        """Takes pieces as they come, so that the end of the text is known when it is there."""
        text = self.config.text
        try:
            async for piece in pieces:
                arrived.put_nowait(self._bounded(piece))
                if self.timings.characters > text.max_chars:
                    _LOGGER.warning("a text is cut at %d characters", text.max_chars)
                    break
        except SpeechError as error:
            arrived.put_nowait(error)
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
        except SpeechError as error:
            await ready.put(error)

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
        spoken = await self._by_deadline(
            self.speech.spoken(text, self.language), waits_for_text=False
        )
        if not spoken.text:
            return
        self.language = spoken.language
        if self.worker is None:
            self.worker = self.speech.choose_worker()
            self.timings.fallback = not self.worker.info.cacheable
        now = asyncio.get_running_loop().time()
        first = self.timings.segments == 0
        due = now if first else max(now, self.played_until) + self.queued_s
        expected_s = expected_steps(spoken.text) / STEPS_PER_SECOND
        self.queued_s += expected_s
        flight = self.speech.flight(
            self.worker,
            spoken,
            self.voice,
            due=NEVER if self.background else due,
            admitted=not first,
            background=self.background,
        )
        self.flights.append(flight)
        self.timings.segments += 1
        if not self.background:
            self.speech.remember(text, self.voice)
        await ready.put(_Segment(flight, spoken.pause, expected_s))

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
            await self._play_segment(item.flight)
            pause = item.pause
        if self.timings.first_audio is None:
            await self._send(silence(NOTHING_TO_SAY_MS))

    async def _play_segment(self, flight: Flight) -> None:
        audio = flight.listen()
        try:
            while True:
                try:
                    pcm = await self._by_deadline(anext(audio), waits_for_text=False)
                except StopAsyncIteration:
                    break
                await self._send(pcm)
        finally:
            await audio.aclose()
        self.timings.cache_hits += flight.from_cache
        self.timings.shared += flight.listeners > 1
        self.flights.remove(flight)
        self.speech.leave(flight)

    async def _send(self, pcm: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if self.timings.first_audio is None:
            self.timings.first_audio = now - self.begin
        seconds = duration_s(len(pcm))
        self.timings.audio += seconds
        self.played_until = max(now, self.played_until) + seconds
        await self.sink(pcm)

    async def _by_deadline(self, step: Awaitable[_T], *, waits_for_text: bool) -> _T:
        """Awaits a step within the deadlines of first audio and of the whole request.

        A writer who is slow to go on costs no deadline; the speech that it waits for does.
        """
        loop = asyncio.get_running_loop()
        deadline = self.config.deadline
        limits: list[float] = []
        if self.text_ended is not None:
            limits.append(self.text_ended + deadline.total_s)
        if not waits_for_text:
            limits.append(loop.time() + deadline.first_audio_s)
        try:
            async with asyncio.timeout_at(min(limits, default=None)):
                return await step
        except TimeoutError:
            late = "first audio" if self.timings.first_audio is None else "the whole text"
            raise DeadlineExceeded(f"{late} took longer than its deadline") from None


async def whole(text: str) -> AsyncGenerator[str, None]:
    """A text that is there at once, as pieces."""
    yield text


def _mel_bytes(mels: list[Mel]) -> bytes:
    joined = np.concatenate(mels, axis=1) if mels else EMPTY_AUDIO.reshape(_MEL_BINS, 0)
    return np.ascontiguousarray(joined, dtype=np.float16).tobytes()
