"""The server's life: listen → fallback voice → load → warm up → drain → stop."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from wyoming.error import Error
from wyoming.event import async_write_event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from . import __version__
from .cache import SegmentCache
from .config import Config, read_lines
from .engine.base import Engine
from .engine.fallback import FallbackEngine
from .errors import (
    EXIT_ENGINE_LOST,
    Busy,
    ConfigError,
    EngineLost,
    ShuttingDown,
    SpeechError,
    is_exhausted,
)
from .handler import Connection, Services
from .logs import PeerLog
from .model import (
    in_daemon_thread,
    is_fatal,
    load_engine,
    obtain_engine,
    retry_pauses,
    settle,
    unsettle,
)
from .speech import Speech, whole
from .status import ServerStatus
from .voices import LANGUAGES, Voice, Voices
from .worker import Worker

_LOGGER = logging.getLogger(__name__)

_ATTRIBUTION = Attribution(name="2noise", url="https://github.com/2noise/ChatTTS")
_ABORT_S = 2.0
_LAST_WORD_S = 1.0


class Server:
    """Everything that runs in a serving process."""

    def __init__(self, config: Config) -> None:
        """Raises `VoiceError` for impossible voices."""
        self._config = config
        self._voices = Voices(config)
        self._cache = SegmentCache(config.cache_path, config.cache)
        self.speech = Speech(config, self._cache)
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self.status = ServerStatus(
            config, self.speech, self._cache, self._voices, lambda: len(self._connections)
        )
        self._peers = PeerLog()
        self._services = Services(
            config, self.speech, self._voices, self.info, self.status.metrics, self._peers
        )
        self._stopping = asyncio.Event()
        self._lost: EngineLost | None = None
        self._workers: list[Worker] = []
        self.uri = ""
        self.studio_uri: str | None = None

    async def run(self) -> int:
        """Serves until `stop()`; returns the exit status."""
        async with self._listening(), self._studio() as self.studio_uri:
            tasks = [
                asyncio.create_task(self._live(), name="model"),
                asyncio.create_task(self._follow_voices(), name="voices"),
            ]
            try:
                await self._stopping.wait()
            finally:
                await self._drain()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers:
            await worker.stop()
        await self.speech.close()
        await self._cache.close()
        if self._lost is not None:
            _LOGGER.critical("ending with status %d: %s", EXIT_ENGINE_LOST, self._lost)
            return EXIT_ENGINE_LOST
        _LOGGER.info("stopped")
        return 0

    def stop(self) -> None:
        """Begins an orderly end: what is being spoken may finish within `server.drain_s`."""
        self._stopping.set()

    def on_loop_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `loop.set_exception_handler`: where descriptors run out, asyncio tells of every
        connection that it cannot accept, a hundred at once (it tries again by itself)."""
        error = context.get("exception")
        if is_exhausted(error):
            self._peers.warn("", "no connection can be accepted now: %s", error)
        else:
            loop.default_exception_handler(context)

    def info(self) -> Info:
        """The answer to `describe`, made afresh from the voices of now."""
        voices = [
            TtsVoice(
                name=voice.name,
                attribution=_ATTRIBUTION,
                installed=True,
                description=voice.description,
                version=None,
                languages=list(LANGUAGES),
            )
            for voice in self._voices.all()
        ]
        return Info(
            tts=[
                TtsProgram(
                    name="chattts",
                    attribution=_ATTRIBUTION,
                    installed=True,
                    description="ChatTTS speech, Chinese and English",
                    version=__version__,
                    voices=voices,
                    supports_synthesize_streaming=True,
                )
            ]
        )

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Accepts connections inside the block. Raises `ConfigError` if the address is taken."""
        uri = urlparse(self._config.server.uri)
        # the line of an event's header may be as long as its data
        limit = self._config.server.max_event_bytes
        try:
            if uri.scheme == "unix":
                path = Path(uri.netloc + uri.path)
                path.unlink(missing_ok=True)
                server = await asyncio.start_unix_server(self._accept, path, limit=limit)
                self.uri = f"unix://{path}"
            else:
                server = await asyncio.start_server(
                    self._accept, uri.hostname, uri.port, limit=limit
                )
                host, port = server.sockets[0].getsockname()[:2]
                self.uri = f"tcp://{host}:{port}"
        except OSError as error:
            raise ConfigError(f"server.uri: cannot listen on {uri.geturl()}: {error}") from None
        _LOGGER.info("listening on %s", self.uri)
        zeroconf = await self._advertise(server)
        try:
            yield
        finally:
            server.close()
            await zeroconf.aclose()
            if uri.scheme == "unix":
                Path(uri.netloc + uri.path).unlink(missing_ok=True)

    def _studio(self) -> contextlib.AbstractAsyncContextManager[str | None]:
        """The voice studio inside the block."""
        if not self._config.web.enabled:
            return contextlib.nullcontext()
        from .web.app import studio

        return studio(self._config.web, self.speech, self._voices, self.status, self._cache.clear)

    async def _advertise(self, server: asyncio.Server) -> contextlib.AsyncExitStack:
        stack = contextlib.AsyncExitStack()
        if self._config.server.zeroconf and server.sockets[0].family != socket.AF_UNIX:
            from .discovery import advertise

            host, port = server.sockets[0].getsockname()[:2]
            await stack.enter_async_context(
                advertise(self._config.server.zeroconf_name, host, port)
            )
        return stack

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._stopping.is_set():
            await _turn_away(writer, ShuttingDown("the server is stopping"))
            return
        limits, address = self._config.server, _address(writer)
        theirs = sum(connection.address == address for connection in self._connections.values())
        if len(self._connections) >= limits.max_connections or (
            theirs >= limits.max_connections_per_address
        ):
            self._peers.warn(
                address,
                "refusing connections of %s: it has %d, and there are %d in all",
                *(address, theirs, len(self._connections)),
            )
            await _turn_away(writer, Busy("too many connections"))
            return
        connection = Connection(self._services, reader, writer, address)
        self._connections[task] = connection
        try:
            await connection.run()
        finally:
            self._connections.pop(task, None)

    async def _live(self) -> None:
        """From the first moment to a warm engine."""
        try:
            if self._config.fallback.enabled:
                await self._start_fallback()
            await self._insist(self.speech.prepare)
            await self._start_engine()
            await self._warm_up_phrases()
            while self._config.engine.unload_after_s is not None:
                await self._sleep_when_idle(self._config.engine.unload_after_s)
        except EngineLost as error:
            self._engine_lost(error)
        # last resort: a fault here must be seen, and the server goes on with what it has
        except Exception as error:
            _LOGGER.error("the start did not come to its end: %s", error, exc_info=error)

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeats a step of the start, with growing pauses, until it succeeds."""
        for pause in retry_pauses(self._config.model):
            try:
                await step()
            # whatever it was may be over by then: no memory, no descriptors, no threads
            except Exception as error:
                _LOGGER.error("starting failed: %s", error, exc_info=error)
            else:
                return
            _LOGGER.info("trying again in %.0f s", pause)
            await asyncio.sleep(pause)

    async def _follow_voices(self) -> None:
        """Takes in what changes in the folder of voices."""
        while True:
            await asyncio.sleep(self._config.voices.rescan_s)
            try:
                if await in_daemon_thread(self._voices.refresh):
                    _LOGGER.info("the voices changed: there are %d", len(self._voices.all()))
            except OSError as error:
                self._peers.warn("voices", "the voices cannot be looked at now: %s", error)
            # last resort: a fault in a voice must not end the looking
            except Exception as error:
                _LOGGER.error("reading the voices failed: %s", error, exc_info=error)

    async def _start_fallback(self) -> None:
        engine = FallbackEngine(self._config.fallback)
        thread = ThreadPoolExecutor(1, thread_name_prefix="fallback")
        thread.submit(engine.warm_up)
        worker = self._worker(engine, thread)
        self.speech.fallback = worker
        _LOGGER.info(
            "speaking with the fallback voice (espeak-ng) until the ChatTTS model is loaded"
        )

    async def _start_engine(self) -> None:
        inference = ThreadPoolExecutor(1, thread_name_prefix="inference")
        engine = await obtain_engine(self._config, inference)
        await self._insist(lambda: in_daemon_thread(self._voices.resolve))
        await asyncio.get_running_loop().run_in_executor(inference, settle)
        self.speech.worker = self._worker(engine, inference)
        _LOGGER.info(
            "speaking with %s on %s (%s, %d slots)",
            engine.info.name,
            engine.info.device,
            engine.info.precision,
            engine.info.slots,
        )

    async def _sleep_when_idle(self, limit: float) -> None:
        """Unloads the model once nobody spoke for `limit` seconds, and loads it when somebody
        does."""
        loop, speech = asyncio.get_running_loop(), self.speech
        while (worker := speech.worker) is not None:
            left = worker.used_at + limit - loop.time()
            if left <= 0 and not speech.active:
                break
            await asyncio.sleep(max(left, _IDLE_LOOK_S))
        if worker is None:
            return
        speech.worker, speech.asleep = None, True
        speech.needed.clear()
        speech.loaded.clear()
        self._workers.remove(worker)
        await worker.stop(then=unsettle)
        del worker
        _LOGGER.info("unloaded the model after %.0f s without a request", limit)
        await speech.needed.wait()
        await self._start_engine()
        speech.asleep = False
        speech.loaded.set()

    def _worker(self, engine: Engine, thread: ThreadPoolExecutor) -> Worker:
        reload = None
        if engine.info.cacheable:
            config = self._config

            def reload() -> Engine:
                engine = load_engine(config)
                settle()
                return engine

        worker = Worker(
            engine,
            self._config.queue,
            self._config.worker,
            reload=reload,
            on_lost=self._engine_lost,
            is_fatal=is_fatal,
            thread=thread,
        )
        worker.start()
        self._workers.append(worker)
        return worker

    def _engine_lost(self, error: EngineLost) -> None:
        self._lost = error
        self._stopping.set()

    async def _warm_up_phrases(self) -> None:
        """Fills the cache in the background with the phrases of the settings, and with those that
        were used most and are not in it any more."""
        warmup = self._config.warmup
        if not (warmup.enabled and self._config.cache.enabled):
            return
        default = self._voices.default
        phrases = [(text, default) for text in await _listed_phrases(self._config)]
        for phrase in await self._cache.most_used(warmup.remember):
            phrases.append((phrase.text, self._voices.find(phrase.voice)))
        for i, (text, voice) in enumerate(phrases, 1):
            if await self._warm_up_phrase(text, voice) and (i % 10 == 0 or i == len(phrases)):
                _LOGGER.info("warm-up: %d of %d phrases are ready", i, len(phrases))

    async def _warm_up_phrase(self, text: str, voice: Voice) -> bool:
        """Makes one phrase; gives way to listeners and comes back."""
        for _ in range(_WARM_UP_TRIES):
            try:
                await self.speech.speak(whole(text), voice, _discard, background=True)
                return True
            except Busy:
                await asyncio.sleep(1.0)
            except SpeechError as error:
                _LOGGER.warning("warm-up of a phrase failed: %s", error)
                return False
        return False

    async def _drain(self) -> None:
        """Lets what is being spoken finish within `drain_s`, and tells the rest."""
        self._services.draining = True
        error = ShuttingDown("the server is stopping")
        idle = [c for c in self._connections.values() if not c.busy]
        await asyncio.gather(*(connection.stop(error) for connection in idle))
        if self._connections:
            _LOGGER.info("letting %d requests finish", len(self._connections))
            # with the engine lost, all that is left to them is to hear of it
            limit = self._config.server.drain_s if self._lost is None else _LAST_WORD_S
            await asyncio.wait(list(self._connections), timeout=limit)
        left = list(self._connections.items())
        await asyncio.gather(*(connection.stop(error) for _, connection in left))
        if left:
            await asyncio.wait([task for task, _ in left], timeout=_ABORT_S)


_WARM_UP_TRIES = 100
_IDLE_LOOK_S = 0.1


async def _discard(_pcm: bytes) -> None:
    """Warm-up has no listener."""


async def _listed_phrases(config: Config) -> list[str]:
    phrases = list(config.warmup.phrases)
    if config.warmup.file:
        try:
            phrases += await asyncio.to_thread(read_lines, Path(config.warmup.file).expanduser())
        except ConfigError as error:
            _LOGGER.error("warmup.file: %s", error)
    return phrases


def _address(writer: asyncio.StreamWriter) -> str:
    """A peer's address without its port; all peers of a Unix socket are one."""
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "unix"


async def _turn_away(writer: asyncio.StreamWriter, error: SpeechError) -> None:
    """Tells a peer that gets no connection why, without waiting for it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await async_write_event(Error(text=str(error), code=error.code).event(), writer)
    writer.close()


def serve(config: Config) -> int:
    """Runs a server to its end; returns the exit status."""

    async def run() -> int:
        server = Server(config)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(server.on_loop_fault)

        def on_signal(_number: int, _frame: object) -> None:
            # the loop may have ended already; then there is nothing left to stop
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(server.stop)

        # not the loop's own handlers: those end with it, and a second signal would then kill an
        # orderly end
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        return await server.run()

    status = asyncio.run(run())
    logging.shutdown()
    if status == EXIT_ENGINE_LOST:
        # the inference thread may hang in the driver, and would hold up an orderly exit
        os._exit(status)
    return status
