"""The main line without a server: text → cache → worker → engine, for commands."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from .cache import SegmentCache
from .config import Config
from .engine.base import Engine
from .engine.layout import present
from .errors import ConfigError
from .model import load_engine
from .speech import Speech
from .voices import Voices
from .worker import Worker

_LOGGER = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def offline_speech(
    config: Config, *, allow_fallback: bool = False
) -> AsyncIterator[tuple[Speech, Voices]]:
    """Speech and voices over the model on disk, inside the block.

    Without a model it speaks with the fallback voice where that is allowed; otherwise it raises
    `ConfigError`.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix="inference")
    voices = Voices(config)
    engine: Engine
    if present(config.model_path):
        engine = await loop.run_in_executor(thread, load_engine, config)
        await loop.run_in_executor(thread, voices.resolve)
    elif allow_fallback and config.fallback.enabled:
        from .engine.fallback import FallbackEngine

        _LOGGER.warning(
            "%s holds no ChatTTS model (see `wyoming-chattts model download`); speaking with the "
            "fallback voice",
            config.model_path,
        )
        engine = FallbackEngine(config.fallback)
    else:
        raise ConfigError(f"{config.model_path} holds no ChatTTS model; see `model download`")
    cache = SegmentCache(config.cache_path, config.cache)
    speech = Speech(config, cache)
    worker = Worker(engine, config.queue, config.worker, thread=thread)
    worker.start()
    speech.worker = worker
    try:
        yield speech, voices
    finally:
        await worker.stop()
        await speech.close()
        await cache.close()
