"""Gets the ChatTTS engine: finds or downloads the checkpoint, verifies and loads it.

Runs beside a server that speaks with the fallback voice already; failures are said with what to
do, and tried again with growing pauses.
"""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .config import Config, ModelConfig
from .engine.base import Engine
from .engine.checkpoint import HashMemo, download, open_checkpoint
from .engine.layout import present
from .errors import ChatTTSServerError, CheckpointError, DamagedFile, EngineLost

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

_PROGRESS_EVERY_S = 10.0


def load_engine(config: Config) -> Engine:
    """A loaded engine over the checkpoint on disk (blocks; imports torch).

    Raises `CheckpointError` or `ConfigError`.
    """
    memo = HashMemo(config.data_path / "hashes.json")
    checkpoint = open_checkpoint(config.model_path, verify=config.model.verify, memo=memo)
    if checkpoint.synthetic:
        _LOGGER.warning(
            "%s is a synthetic checkpoint: what it says is noise, not a voice", config.model_path
        )
    if config.engine.kind == "reference":
        from .engine.reference import ReferenceEngine

        return ReferenceEngine(checkpoint, config.engine)
    from .engine.fast import FastEngine

    return FastEngine(checkpoint, config.engine, config.sampling, config.stream)


def fetch(config: Config) -> None:
    """Downloads the checkpoint, with progress in the log (blocks). Raises `CheckpointError`."""
    model = config.model
    _LOGGER.info("downloading %s into %s", model.repo, config.model_path)
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_EVERY_S:
            last = time.monotonic()
            _LOGGER.info("model download: %d of about %d MB", done // 1_000_000, total // 1_000_000)

    download(
        config.model_path,
        repo=model.repo,
        revision=model.revision,
        endpoint=model.endpoint,
        progress=progress,
    )
    _LOGGER.info("model download: complete")


async def obtain_engine(config: Config, inference: ThreadPoolExecutor) -> Engine:
    """Keeps trying until an engine is loaded and warm in the inference thread.

    Raises `EngineLost`, after the pause that comes before another try, where only a new process
    can use the GPU.
    """
    loop = asyncio.get_running_loop()
    for pause in retry_pauses(config.model):
        try:
            if not present(config.model_path):
                if not config.model.download:
                    raise CheckpointError(
                        f"{config.model_path} holds no ChatTTS model, and model.download is off"
                    )
                await in_daemon_thread(lambda: fetch(config))
            return await loop.run_in_executor(inference, _load_warm, config)
        except DamagedFile as error:
            _LOGGER.error("%s", error)
            if config.model.dir is None and config.model.download:
                # in our own folder; what somebody put into theirs is not ours to delete
                _LOGGER.info("deleting %s, to fetch it again", error.path)
                error.path.unlink(missing_ok=True)
        except ChatTTSServerError as error:
            _LOGGER.error("%s", error)
        # torch alone raises RuntimeError for anything from memory to drivers
        except Exception as error:
            _LOGGER.error("the model cannot be loaded: %s", error, exc_info=error)
            if is_fatal(error):
                await asyncio.sleep(pause)
                raise EngineLost(str(error)) from error
        _LOGGER.info("trying again in %.0f s", pause)
        await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")


def _load_warm(config: Config) -> Engine:
    begin = time.monotonic()
    engine = load_engine(config)
    _LOGGER.info("loaded the model in %.1f s", time.monotonic() - begin)
    try:
        engine.warm_up()
    except BaseException:
        # what it holds of the GPU's memory is needed by the next try
        engine.close()
        raise
    return engine


def retry_pauses(model: ModelConfig) -> Iterator[float]:
    """Seconds to wait after each failure, growing from `retry_min_s` to `retry_max_s`; endless."""
    pause = model.retry_min_s
    while True:
        yield pause
        pause = min(2 * pause, model.retry_max_s)


def is_fatal(error: BaseException) -> bool:
    """Whether an error means that this process cannot use its GPU again."""
    # imported late: torch is loaded by the time an engine can fail
    from .engine.device import is_fatal

    return is_fatal(error)


def settle() -> None:
    """Exempts what is alive from Python's cyclic collector (blocks; call after loading a model).

    Most of it is torch's modules, some hundred thousand objects that never go. A full collection
    that walks through them holds every thread up for 140 ms, in the middle of somebody's answer.

    Up to Python 3.13 the collector waits with the next full collection until a quarter of what
    survived the last one has come to be. Hence the second one here: without it the collector goes
    on counting what is exempt, and lets the garbage of some ten thousand requests pile up first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.collect()


def unsettle() -> None:
    """Collects what `settle` exempted, where it is garbage by now (blocks)."""
    gc.unfreeze()
    gc.collect()


async def in_daemon_thread(call: Callable[[], _T]) -> _T:
    """Runs a call in a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: _T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            _LOGGER.debug("the event loop ended before a thread did")

    threading.Thread(target=run, name="model", daemon=True).start()
    return await future
