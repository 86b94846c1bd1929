"""The single inference worker: one asyncio task that owns one inference thread.

Segments come in as jobs, wait in a bounded queue, and are decoded side by side in the engine's
slots; they join and leave at burst boundaries. Who runs dry next is served first; warm-up is
served last and gives way. A failing burst fails the jobs it was for, resets the engine and goes
on; repeated failure reloads the engine; a lost device or a hung burst ends the process, for its
supervisor to restart.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from .config import QueueConfig, WorkerConfig
from .engine.base import (
    SAMPLE_RATE,
    STEPS_PER_SECOND,
    End,
    Engine,
    EngineInfo,
    FloatAudio,
    Mel,
    Prompt,
    Sampling,
    SlotOutput,
)
from .errors import Busy, EngineFailed, EngineLost, ModelUnavailable, ShuttingDown, SpeechError

_LOGGER = logging.getLogger(__name__)

_T = TypeVar("_T")

_AHEAD_S = 0.8
"""A segment whose listener has this much left to hear need not begin yet: it leaves one slot free
for newcomers, and all of the machine to a listener who is about to run dry."""
_COMFORT_S = 1.2
"""With this much left to hear, a listener does not run dry for a neighbour that joins."""
_KEEPS_UP = 0.9
"""Real-time factor of one slot alone up to which waiting with the next segment is safe; above it
only decoding side by side keeps up at all."""
_DECAY = 0.95
_ENOUGH_STEPS = 40
"""Steps after which the pace of one slot is known."""
_MUCH_S = 10.0
"""A listener who has had this much takes turns with those who wait; up to there a sentence that has
begun is finished first."""
_GIVES_WAY_S = 10.0
"""How much longer such a listener waits for the next turn than one who has had less."""
_RELOAD_S = 120.0
"""Time to load the model again; far above what it takes from a slow disk."""


@dataclass(eq=False, slots=True)
class Listener:
    """Whose segments share the slots fairly with those of others: one request."""

    left_at: float = -math.inf
    """Loop time at which a segment of theirs last left a slot."""
    audio_s: float = 0.0
    """What has been made for them."""


@dataclass(eq=False, slots=True)
class Job:
    """A segment on its way through the engine. Iterate it for its outputs."""

    prompt: Prompt
    sampling: Sampling
    due: float
    """Loop time at which its listener runs dry; the smallest is served first."""
    background: bool
    listener: Listener
    number: int
    submitted_at: float
    cancelled: bool = False
    started_at: float | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    codec_s: float = 0.0
    steps: int = 0
    first_at: float | None = None
    """Loop time of its first audio."""
    audio_s: float = 0.0
    outputs: asyncio.Queue[SlotOutput | SpeechError] = field(default_factory=asyncio.Queue)

    async def __aiter__(self) -> AsyncIterator[SlotOutput]:
        """Outputs up to the one with `end`. Raises the `SpeechError` that the job failed with."""
        while True:
            output = await self.outputs.get()
            if isinstance(output, SpeechError):
                raise output
            yield output
            if output.end is not None:
                return

    def claim(self) -> float:
        """Loop time by which those who wait are served; the smallest first."""
        if self.listener.audio_s < _MUCH_S:
            return self.due
        return max(self.due, self.listener.left_at + _GIVES_WAY_S)

    def is_tight(self, now: float) -> bool:
        """Whether its listener waits, or is about to run dry."""
        if self.background:
            return False
        if self.first_at is None:
            return self.due < now + _AHEAD_S
        return max(self.due, self.first_at) + self.audio_s < now + _COMFORT_S

    def fail(self, error: SpeechError) -> None:
        """Ends the job with an error."""
        self.cancelled = True
        self.outputs.put_nowait(error)


@dataclass(slots=True)
class WorkerStats:
    """Counters since the start; `busy_s` is time spent in bursts."""

    jobs: int = 0
    refused: int = 0
    failures: int = 0
    reloads: int = 0
    steps: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class _Turn:
    """What one trip to the inference thread is to do, and what came of it."""

    stops: list[int]
    starts: list[tuple[int, Job]]
    bursting: bool
    failed_starts: list[tuple[int, Job, Exception]] = field(default_factory=list)
    outputs: list[SlotOutput] = field(default_factory=list)
    error: Exception | None = None
    seconds: float = 0.0


class Worker:
    """Owns an engine. All methods are for the event loop's thread."""

    def __init__(
        self,
        engine: Engine,
        queue: QueueConfig,
        worker: WorkerConfig,
        *,
        reload: Callable[[], Engine] | None = None,
        on_lost: Callable[[EngineLost], None] | None = None,
        is_fatal: Callable[[BaseException], bool] = lambda _error: False,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        """`thread` is the inference thread the engine was loaded in, if it was loaded already."""
        self._engine = engine
        self._queue = queue
        self._config = worker
        self._reload = reload
        self._on_lost = on_lost
        self._is_fatal = is_fatal
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="inference")
        self._numbers = itertools.count()
        self._pending: list[Job] = []
        self._running: dict[int, Job] = {}
        self._vocodes: list[tuple[Mel, asyncio.Future[FloatAudio]]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.used_at = asyncio.get_running_loop().time()
        """Loop time at which it last had something to do."""
        self._failures_in_row = 0
        self._alone_s = 0.0
        self._alone_steps = 0.0
        """Time and steps of turns with one slot, codec included; older ones count less."""
        self.stats = WorkerStats()
        self.failed_at: float | None = None
        """Loop time of the last failure."""

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself."""
        return self._engine.info

    @property
    def pending(self) -> int:
        """Requests that wait for a slot and have none."""
        served = {job.listener for job in self._running.values()}
        return len({job.listener for job in self._pending if not job.background} - served)

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._running)

    def start(self) -> None:
        """Starts the worker's task."""
        self._task = asyncio.create_task(self._run(), name="inference worker")
        self._task.add_done_callback(self._ended)

    async def stop(self, then: Callable[[], None] | None = None) -> None:
        """Ends the task, fails what is left with `shutting_down`, and has the engine closed in its
        thread, and `then` called there."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all(ShuttingDown("the server is stopping"))
        self._thread.submit(self._engine.close)
        if then is not None:
            self._thread.submit(then)
        self._thread.shutdown(wait=False)

    def submit(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        due: float,
        listener: Listener,
        admitted: bool = False,
        background: bool = False,
    ) -> Job:
        """Queues a segment of `listener`.

        `admitted` marks a later segment of a request that was let in already, `background` one
        that nobody listens to. Raises `Busy` where the queue is full.
        """
        if self._closing:
            raise ShuttingDown("the server is stopping")
        if self._task is None or self._task.done():
            raise ModelUnavailable("the inference worker is not running")
        if not (admitted or background) and self.pending >= self._queue.max_pending:
            self.stats.refused += 1
            raise Busy(f"{self.pending} requests are waiting already")
        now = asyncio.get_running_loop().time()
        job = Job(prompt, sampling, due, background, listener, next(self._numbers), now)
        self.stats.jobs += 1
        self._pending.append(job)
        self._wake.set()
        return job

    def cancel(self, job: Job) -> None:
        """Forgets a job; a running one leaves its slot at the next burst boundary."""
        job.cancelled = True
        if job in self._pending:
            self._pending.remove(job)
        self._wake.set()

    async def vocode(self, mel: Mel) -> FloatAudio:
        """Audio of stored mel frames, made between two bursts. Raises `EngineFailed`."""
        if self._closing or self._task is None or self._task.done():
            raise ModelUnavailable("the inference worker is not running")
        future: asyncio.Future[FloatAudio] = asyncio.get_running_loop().create_future()
        self._vocodes.append((mel, future))
        self._wake.set()
        return await future

    async def _run(self) -> None:
        while True:
            self.used_at = asyncio.get_running_loop().time()
            if not (self._pending or self._running or self._vocodes):
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._serve_vocodes()
                await self._take_turn()
            except EngineLost:
                raise
            # a broad except: whatever goes wrong, the worker goes on
            except Exception as error:  # noqa: BLE001
                await self._recover(error)

    async def _take_turn(self) -> None:
        turn = self._plan()
        if not (turn.stops or turn.starts or turn.bursting):
            return
        await self._in_thread(self._do, turn)
        self.stats.busy_s += turn.seconds
        for slot, job, error in turn.failed_starts:
            self._running.pop(slot, None)
            _LOGGER.error("a segment could not be started: %s", error, exc_info=error)
            job.fail(EngineFailed(f"the engine refused a segment: {type(error).__name__}"))
            if self._is_fatal(error):
                raise EngineLost(str(error)) from error
        if turn.error is not None:
            await self._recover(turn.error)
            return
        self._notice_pace(turn)
        for output in turn.outputs:
            self._deliver(output, turn.seconds)
        if any(output.end is End.BROKEN for output in turn.outputs):
            await self._recover_from_nonsense()
        elif turn.bursting:
            self._failures_in_row = 0

    def _notice_pace(self, turn: _Turn) -> None:
        if len(turn.outputs) != 1 or turn.starts:
            return
        (output,) = turn.outputs
        job = self._running.get(output.slot)
        if job is not None and (steps := output.steps - job.steps) > 0:
            self._alone_s = _DECAY * self._alone_s + turn.seconds
            self._alone_steps = _DECAY * self._alone_steps + steps

    def _must_wait(self, now: float) -> bool:
        """Whether a segment that nobody needs yet is to wait for a listener who is short."""
        known = self._alone_steps >= _ENOUGH_STEPS
        if known and self._alone_s * STEPS_PER_SECOND > _KEEPS_UP * self._alone_steps:
            return False
        return any(job.is_tight(now) for job in self._running.values())

    def _plan(self) -> _Turn:
        """Chooses who leaves and who joins at this burst boundary."""
        stops = [slot for slot, job in self._running.items() if job.cancelled]
        for slot in stops:
            del self._running[slot]
        self._pending = [job for job in self._pending if not job.cancelled]
        slots = self.info.slots
        free = sorted(set(range(slots)) - self._running.keys())
        starts: list[tuple[int, Job]] = []
        now = asyncio.get_running_loop().time()
        served = {job.listener for job in self._running.values()}
        waiting = list(self._pending)
        while waiting:
            # one segment of each listener before the second of any
            job = min(
                waiting, key=lambda j: (j.background, j.listener in served, j.claim(), j.number)
            )
            unhurried = job.background or job.due > now + _AHEAD_S
            if unhurried and self._must_wait(now):
                break
            if not free and not job.background and (taken := self._evict_background()) is not None:
                stops.append(taken)
                free = [taken]
            spare = unhurried or job.listener in served
            if not free or (spare and len(free) < 2 and slots > 1):
                break
            slot = free.pop(0)
            starts.append((slot, job))
            self._running[slot] = job
            served.add(job.listener)
            waiting.remove(job)
            job.started_at = now
        self._pending = waiting
        return _Turn(stops, starts, bursting=bool(self._running))

    def _evict_background(self) -> int | None:
        """The slot of a warm-up segment, which gives way; who wanted it may ask again."""
        for slot, job in self._running.items():
            if job.background:
                job.fail(Busy("gave way to a listener"))
                del self._running[slot]
                return slot
        return None

    def _do(self, turn: _Turn) -> None:
        """Runs on the inference thread."""
        begin = time.perf_counter()
        try:
            for slot in turn.stops:
                self._engine.stop(slot)
            for slot, job in turn.starts:
                try:
                    self._engine.start(slot, job.prompt, job.sampling)
                except Exception as error:  # noqa: BLE001 - reported by the worker task
                    self._engine.stop(slot)
                    turn.failed_starts.append((slot, job, error))
            if turn.bursting:
                turn.outputs = self._engine.burst(self._config.burst_steps)
        except Exception as error:  # noqa: BLE001 - reported by the worker task
            turn.error = error
        turn.seconds = time.perf_counter() - begin

    def _deliver(self, output: SlotOutput, seconds: float) -> None:
        job = self._running.get(output.slot)
        if job is None:
            return
        job.prefill_s += output.prefill_s
        job.codec_s += output.codec_s
        job.decode_s += max(0.0, seconds - output.prefill_s - output.codec_s)
        job.steps = output.steps
        if output.audio.size:
            if job.first_at is None:
                job.first_at = asyncio.get_running_loop().time()
            job.audio_s += output.audio.size / SAMPLE_RATE
            job.listener.audio_s += output.audio.size / SAMPLE_RATE
        if output.end is not None:
            del self._running[output.slot]
            job.listener.left_at = asyncio.get_running_loop().time()
            self.stats.steps += output.steps
        if not job.cancelled:
            job.outputs.put_nowait(output)

    async def _serve_vocodes(self) -> None:
        waiting, self._vocodes = self._vocodes, []
        for mel, future in waiting:
            if future.done():
                continue
            try:
                audio = await self._in_thread(self._engine.vocode, mel)
            except EngineLost:
                future.set_exception(EngineFailed("the engine is lost"))
                raise
            except Exception as error:
                _LOGGER.error("vocoding failed: %s", error, exc_info=error)
                if not future.done():
                    future.set_exception(EngineFailed(f"vocoding failed: {type(error).__name__}"))
            else:
                if not future.done():
                    future.set_result(audio)

    async def _in_thread(
        self, function: Callable[..., _T], *args: object, limit_s: float | None = None
    ) -> _T:
        """Runs a call on the inference thread; one that does not return within `limit_s` (if not
        given, `stall_s`) means that the engine hangs, and nothing but a new process helps."""
        limit_s = self._config.stall_s if limit_s is None else limit_s
        future = asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        done, _ = await asyncio.wait([future], timeout=limit_s)
        if not done:
            raise EngineLost(f"the engine has not answered for {limit_s:g} s")
        return future.result()

    async def _recover_from_nonsense(self) -> None:
        """A slot ended with something that is not sound: its request failed. Where that goes on,
        the weights in memory are suspect, and the model is loaded again."""
        if self._failures_in_row + 1 >= self._config.reload_after_failures:
            await self._recover(EngineFailed("the engine's results are not sound"))
            return
        self._count_failure()
        _LOGGER.error("what the engine made of a segment is not sound")

    def _count_failure(self) -> None:
        self.stats.failures += 1
        self.failed_at = asyncio.get_running_loop().time()
        self._failures_in_row += 1

    async def _recover(self, error: Exception) -> None:
        """After a failing burst: fails what was running, resets or reloads the engine."""
        self._count_failure()
        _LOGGER.error("the engine failed: %s", error, exc_info=error)
        failed = EngineFailed(f"the engine failed: {type(error).__name__}")
        running, self._running = list(self._running.values()), {}
        for job in running:
            job.fail(failed)
        if self._is_fatal(error):
            raise EngineLost(str(error)) from error
        try:
            if self._failures_in_row < self._config.reload_after_failures or self._reload is None:
                await self._in_thread(self._engine.reset)
                return
            _LOGGER.warning("reloading the model after %d failures in a row", self._failures_in_row)
            await self._in_thread(self._engine.close)
            self._engine = await self._in_thread(self._reload, limit_s=_RELOAD_S)
            self.stats.reloads += 1
            self._failures_in_row = 0
        except EngineLost:
            raise
        except Exception as fault:
            raise EngineLost(f"the engine could not be brought back: {fault}") from fault

    def _fail_all(self, error: SpeechError) -> None:
        for job in [*self._pending, *self._running.values()]:
            job.fail(error)
        for _, future in self._vocodes:
            if not future.done():
                future.set_exception(error)
        self._pending.clear()
        self._running.clear()
        self._vocodes.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The task never ends by itself but when the engine is lost; then the process must end."""
        if task.cancelled() or self._closing:
            return
        error = task.exception() or EngineLost("the worker ended")
        lost = error if isinstance(error, EngineLost) else EngineLost(repr(error))
        _LOGGER.critical("the engine is lost: %s", lost)
        self._fail_all(EngineFailed("the engine is lost; the server restarts"))
        if self._on_lost is not None:
            self._on_lost(lost)


NEVER = math.inf
"""`due` of a job that nobody waits for."""
