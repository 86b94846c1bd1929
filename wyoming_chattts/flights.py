"""Segments being made, each once, for whoever listens.

The same segment asked for twice at once is one *flight*: it is looked up in the cache or made by
the worker once, and all listeners hear it as it is made. The last one to leave ends the work.
Runs on the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field

import numpy as np

from .audio import SegmentAudio
from .cache import SegmentCache, cache_key
from .config import Config
from .engine.base import EMPTY_AUDIO, End, Mel, Prompt, Sampling
from .errors import EngineFailed, ShuttingDown, SpeechError
from .text.frontend import VERSION as FRONT_END_VERSION
from .text.frontend import Spoken
from .voices import Voice
from .worker import Job, Listener, Worker

_LOGGER = logging.getLogger(__name__)

_KEY_FORMAT = 2
_MEL_BINS = 100
_APPLIED_LATER = {"loudness_lufs", "rate", "pause_ms"}
"""Settings of audio that work on what comes from the cache, too."""


@dataclass(eq=False)
class Flight:
    """One segment being made, for whoever listens."""

    key: str
    due: float
    """Loop time at which the first listener to do so runs dry."""
    background: bool
    """Nobody listens but a warm-up."""
    listener: Listener
    """Who needs it first."""
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


class Flights:
    """All flights of a server."""

    def __init__(self, config: Config, cache: SegmentCache) -> None:
        self._config = config
        self._cache = cache
        self._flights: dict[str, Flight] = {}
        self._background: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many segments are being made or waited for."""
        return len(self._flights)

    async def close(self) -> None:
        """Ends flights that are left, and waits for cache writes."""
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._background, return_exceptions=True)

    def join(
        self,
        worker: Worker,
        spoken: Spoken,
        voice: Voice,
        *,
        due: float,
        admitted: bool,
        background: bool,
        listener: Listener,
    ) -> Flight:
        """Joins the flight of a segment, or begins one. Leave it with `leave()`."""
        prompt, sampling = self._prompt(spoken, voice)
        key = self._key(worker, prompt, sampling)
        flight = self._flights.get(key)
        if flight is None:
            flight = Flight(key, due, background, listener)
            self._flights[key] = flight
            flight.task = asyncio.create_task(
                self._fly(flight, worker, prompt, sampling, admitted),
                name="segment",
            )
        elif not background:
            # somebody listens now to what was warm-up, or sooner than the first one needed it
            flight.background = False
            if due < flight.due:
                flight.due, flight.listener = due, listener
            if flight.job is not None:
                flight.job.background = False
                flight.job.due, flight.job.listener = flight.due, flight.listener
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
        s, style = self._config.sampling, voice.style
        # these levels are tokens of the refine pass and would do nothing without it
        asks_for_it = (style.oral, style.laugh, style.pause) != (None, None, None)
        prompt = Prompt(
            spoken.text,
            voice.embedding,
            style,
            s.refine or asks_for_it,
            spoken.language,
            voice.recording,
        )
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
                "recording": (
                    [prompt.recording.codes.hex(), prompt.recording.transcript]
                    if prompt.recording is not None
                    else None
                ),
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
                "output": "mel" if mel else self._config.audio.model_dump(exclude=_APPLIED_LATER),
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
        admitted: bool,
    ) -> None:
        try:
            if worker.info.cacheable and await self._from_cache(flight, worker):
                return
            flight.job = worker.submit(
                prompt,
                sampling,
                due=flight.due,
                listener=flight.listener,
                admitted=admitted,
                background=flight.background,
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
            # the task's exception holds this frame, and that the flight: it would be a cycle
            flight.task = None

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
        if end is End.BROKEN:
            raise EngineFailed("what the engine made of a segment is not sound")
        flight.push(shape.finish())
        if not flight.chunks:
            raise EngineFailed("the engine made no sound for a segment")
        if end is End.LIMIT:
            _LOGGER.warning("a segment was cut at %d steps without an end", job.sampling.max_steps)
        flight.end()
        if end is End.COMPLETE and worker.info.cacheable:
            value = _mel_bytes(mels) if self._stores_mel(worker) else b"".join(flight.chunks)
            self._in_background(self._cache.put(flight.key, value))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="cache write")
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _mel_bytes(mels: list[Mel]) -> bytes:
    joined = np.concatenate(mels, axis=1) if mels else EMPTY_AUDIO.reshape(_MEL_BINS, 0)
    return np.ascontiguousarray(joined, dtype=np.float16).tobytes()
