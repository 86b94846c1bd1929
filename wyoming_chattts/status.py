"""What a server is doing and whether it is well: readings for `metrics`, health, and the studio's
live figures. Runs on the event loop."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import __version__
from .cache import CacheStats, SegmentCache
from .config import Config
from .metrics import Health, Metrics, Reading
from .speech import Speech
from .voices import Voices
from .worker import Worker

_RECENT_FAILURE_S = 300.0
_CACHE_TIMEOUT_S = 1.0


class ServerStatus:
    """Looks at the parts of a server."""

    def __init__(
        self,
        config: Config,
        speech: Speech,
        cache: SegmentCache,
        voices: Voices,
        connections: Callable[[], int],
    ) -> None:
        self._config = config
        self._speech = speech
        self._cache = cache
        self._voices = voices
        self._connections = connections
        self._cache_stats: CacheStats | None = None
        self._began = time.monotonic()
        self.metrics = Metrics(self.readings)

    async def refresh(self) -> None:
        """Reads what cannot be read at once; a cache that does not answer is left as it was."""
        try:
            async with asyncio.timeout(_CACHE_TIMEOUT_S):
                self._cache_stats = await self._cache.stats()
        except TimeoutError:
            pass

    def health(self) -> Health:
        """Whether the server is well, and what is wrong."""
        worker, fallback = self._speech.worker, self._speech.fallback
        reasons = []
        if worker is None:
            reasons.append("the ChatTTS model is not loaded yet")
        elif worker.failed_at is not None and self._now() - worker.failed_at < _RECENT_FAILURE_S:
            reasons.append("the engine failed within the last minutes")
        stats = self._cache_stats
        if stats is not None and stats.enabled and not stats.healthy:
            reasons.append("the cache cannot be used")
        if self._voices.problems:
            reasons.append(f"{len(self._voices.problems)} voices cannot be used")
        speaking = (worker or fallback) is not None or self._speech.asleep
        if worker is None and self._speech.asleep:
            return Health("ok", ("the model is unloaded until it is needed",), speaking)
        if worker is None:
            return Health("starting", tuple(reasons), speaking)
        return Health("degraded" if reasons else "ok", tuple(reasons), speaking)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def readings(self) -> list[Reading]:
        """The figures of now."""
        worker = self._speech.worker
        readings = [
            Reading("up_seconds", "Time since the start", time.monotonic() - self._began),
            Reading("connections", "Wyoming connections", self._connections()),
            Reading("active_requests", "Requests being spoken", self._speech.active),
            Reading("model_loaded", "Whether ChatTTS speaks", float(worker is not None)),
            Reading("resident_memory_bytes", "Memory of the process", resident_bytes()),
        ]
        if worker is not None:
            readings += _of_worker(worker)
        if self._cache_stats is not None:
            readings += _of_cache(self._cache_stats)
        return readings

    async def live(self) -> dict[str, Any]:
        """Everything that the studio shows of a running server, as plain data."""
        await self.refresh()
        health = self.health()
        worker = self._speech.worker
        return {
            "version": __version__,
            "status": health.status,
            "reasons": list(health.reasons),
            "figures": {reading.name: reading.value for reading in self.readings()},
            "outcomes": dict(self.metrics.outcomes),
            "engine": None
            if worker is None
            else {
                "name": worker.info.name,
                "device": worker.info.device,
                "precision": worker.info.precision,
                "synthetic": worker.info.synthetic,
            },
            "max_pending": self._config.queue.max_pending,
            "errors": [
                {"at": error.at, "code": error.code, "text": error.text}
                for error in reversed(self.metrics.errors)
            ],
            "phrases": [
                {"text": phrase.text, "voice": phrase.voice, "count": phrase.count}
                for phrase in await self._cache.most_used(10)
            ],
        }


def _of_worker(worker: Worker) -> list[Reading]:
    stats = worker.stats
    readings = [
        Reading("queue_depth", "Requests that wait for a slot", worker.pending),
        Reading("slots", "Segments that can be decoded side by side", worker.info.slots),
        Reading("slots_busy", "Slots in use", worker.running),
        Reading("decode_steps", "Decode steps of finished segments", stats.steps, counts=True),
        Reading("decode_busy_seconds", "Time spent decoding", stats.busy_s, counts=True),
        Reading("segments", "Segments given to the engine", stats.jobs, counts=True),
        Reading("refusals", "Requests refused for a full queue", stats.refused, counts=True),
        Reading("engine_failures", "Bursts that failed", stats.failures, counts=True),
        Reading("engine_reloads", "Times the model was loaded again", stats.reloads, counts=True),
    ]
    if worker.info.device.startswith("cuda"):
        # torch is there by now
        from .engine.device import allocated_bytes

        used = allocated_bytes(worker.info.device)
        readings.append(Reading("gpu_memory_bytes", "GPU memory that tensors hold", used))
    return readings


def _of_cache(stats: CacheStats) -> list[Reading]:
    return [
        Reading("cache_healthy", "Whether the cache can be used", float(stats.healthy)),
        Reading("cache_entries", "Segments in the cache", stats.entries),
        Reading("cache_bytes", "Size of the cache", stats.size_bytes),
        Reading("cache_limit_bytes", "Size that the cache may have", stats.limit_bytes),
        Reading("cache_hits", "Segments found in the cache", stats.hits, counts=True),
        Reading("cache_misses", "Segments not found in the cache", stats.misses, counts=True),
        Reading("cache_faults", "Times the cache failed", stats.faults, counts=True),
    ]


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
