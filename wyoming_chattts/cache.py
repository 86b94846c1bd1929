"""The persistent cache of segments: diskcache with least-recently-used eviction.

Values are plain bytes with a checksum; nothing that lies in the cache folder is ever unpickled.
All calls run on the cache's own thread, and none of them raises: a damaged, locked, full or
missing cache costs speed, never speech. The folder may be deleted while the server runs.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import shutil
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import diskcache

from .config import CacheConfig

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

_MAGIC = b"WCT1"
_HEADER = struct.Struct("<4sI")
_SQLITE_TIMEOUT_S = 0.2
_SQLITE_CACHE_PAGES = 64
"""What SQLite keeps of a database in memory, in pages of 4 KB (diskcache's 8192 would grow to 32
MB). With 8000 segments and 15 000 phrases, looking up and keeping took as long as with 1024."""
_RETRY_S = 5.0
_CLOSE_S = 2.0
_PHRASES_BYTES = (256_000, 8_000_000)
"""The least and the most room for the phrases; between them, a sixteenth of the segments'."""
_PHRASE_CHARS = 300
_DATABASES_BYTES = 16_000_000
"""Room for what is not a value: SQLite's files with their logs (4 MB each), and the phrases."""
_FAULTS = (
    OSError,
    sqlite3.Error,
    diskcache.Timeout,
    ValueError,
    TypeError,
    KeyError,
    AssertionError,
)


class PlainDisk(diskcache.Disk):  # type: ignore[misc]
    """Stores text keys and byte values as they are, and refuses everything else."""

    def put(self, key: object) -> tuple[object, bool]:
        """A key for the database; only text is taken."""
        if not isinstance(key, str):
            raise TypeError("cache keys are text")
        return super().put(key)  # type: ignore[no-any-return]

    def get(self, key: object, raw: object) -> object:
        """A key from the database; a pickled one is refused."""
        if not raw or not isinstance(key, str):
            raise ValueError("a key in the cache is not plain text")
        return key

    def store(self, value: object, read: bool, key: object = diskcache.core.UNKNOWN) -> Any:
        """A value for the database; only bytes are taken."""
        if not isinstance(value, bytes) or read:
            raise TypeError("cache values are bytes")
        return super().store(value, read, key=key)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:
        """A value from the database; anything but bytes in this folder is refused."""
        if mode == diskcache.core.MODE_RAW and isinstance(value, bytes):
            return value
        if mode == diskcache.core.MODE_BINARY and filename and not read:
            path = (Path(self._directory) / filename).resolve()
            if not path.is_relative_to(Path(self._directory).resolve()):
                raise ValueError("a value in the cache points out of its folder")
            return path.read_bytes()
        raise ValueError("a value in the cache is not plain bytes")


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Figures of a cache; `healthy` is False while it cannot be used."""

    enabled: bool
    healthy: bool
    entries: int
    size_bytes: int
    limit_bytes: int
    hits: int
    misses: int
    faults: int

    @property
    def hit_rate(self) -> float:
        """Share of lookups that hit, since the cache was made or cleared."""
        return self.hits / max(1, self.hits + self.misses)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A segment that was spoken, as written, with its voice and how often."""

    text: str
    voice: str
    count: int


def cache_key(parts: dict[str, Any]) -> str:
    """Hex sha256 over everything that shapes a segment's sound."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class SegmentCache:
    """Asynchronous face of the cache."""

    def __init__(self, folder: Path, config: CacheConfig) -> None:
        self._folder = folder
        self._config = config
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cache")
        self._segments: diskcache.Cache | None = None
        self._phrases: diskcache.Cache | None = None
        self._retry_at = 0.0
        self._faults = 0

    async def get(self, key: str) -> bytes | None:
        """A value, or None if there is none or the cache does not answer in time."""
        if not self._config.enabled:
            return None
        future = self._submit(lambda: self._get(key), None)
        try:
            async with asyncio.timeout(self._config.lookup_timeout_ms / 1000):
                value = await asyncio.shield(future)
        except TimeoutError:
            _LOGGER.debug("the cache did not answer in time")
            value = None
        return value

    async def put(self, key: str, value: bytes) -> None:
        """Keeps a value."""
        if self._config.enabled:
            await self._submit(lambda: self._put(key, value), None)

    async def remember(self, text: str, voice: str) -> None:
        """Counts a use of a segment, so that it can be made again for a new model or voice."""
        if self._config.enabled and 0 < len(text) <= _PHRASE_CHARS:
            await self._submit(lambda: self._remember(text, voice), None)

    async def most_used(self, limit: int) -> list[Phrase]:
        """The segments that were spoken most often, at least twice."""
        return await self._submit(lambda: self._most_used(limit), [])

    async def clear(self) -> int:
        """Removes everything; returns the number of entries that were there."""
        return await self._submit(self._clear, 0)

    async def stats(self) -> CacheStats:
        """Figures of now."""
        return await self._submit(self._stats, self._empty_stats())

    async def close(self) -> None:
        """Closes the files, unless something holds them up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(self._submit(self._close, None))
        self._thread.shutdown(wait=False)

    def _submit(self, call: Callable[[], _T], otherwise: _T) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._guarded(call, otherwise)
        )

    # below: on the cache thread

    def _guarded(self, call: Callable[[], _T], otherwise: _T) -> _T:
        """Runs a call; a fault closes the files, to be opened afresh after a while."""
        if time.monotonic() < self._retry_at:
            return otherwise
        try:
            return call()
        except _FAULTS as error:
            self._faults += 1
            self._retry_at = time.monotonic() + _RETRY_S
            _LOGGER.warning(
                "the cache in %s cannot be used (%s: %s); speaking goes on without it",
                self._folder,
                type(error).__name__,
                error,
            )
            if not isinstance(error, diskcache.Timeout):
                self._close()
                self._set_aside_if_damaged(error)
            return otherwise

    def _open(self, name: str, limit: int) -> diskcache.Cache:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        _check_unlocked(self._database(name))
        return diskcache.Cache(
            str(folder),
            disk=PlainDisk,
            timeout=_SQLITE_TIMEOUT_S,
            size_limit=limit,
            eviction_policy="least-recently-used",
            cull_limit=10,
            statistics=1,
            # a mapped file that is cut off ends the process that reads it (SIGBUS)
            sqlite_mmap_size=0,
            sqlite_cache_size=_SQLITE_CACHE_PAGES,
        )

    def _opened(self) -> diskcache.Cache:
        if self._segments is None or not self._database("segments").exists():
            self._close()
            limit = self._size_limit()
            least, most = _PHRASES_BYTES
            self._segments = self._open("segments", limit)
            self._phrases = self._open("phrases", max(least, min(most, limit // 16)))
        return self._segments

    def _size_limit(self) -> int:
        """What the settings allow, or what a smaller disk has room for: on a full one SQLite can
        neither read nor remove."""
        self._folder.mkdir(parents=True, exist_ok=True)
        limit = self._config.size_mb * 1_000_000
        room = shutil.disk_usage(self._folder).free - _DATABASES_BYTES
        if room < limit:
            # only then is it worth a walk through all values
            values = (self._folder / "segments").rglob("*.val")
            room += sum(path.stat().st_size for path in values)
        return max(1_000_000, min(limit, room))

    def _database(self, name: str) -> Path:
        return self._folder / name / str(diskcache.core.DBNAME)

    def _get(self, key: str) -> bytes | None:
        cache = self._opened()
        try:
            value = cache.get(key, retry=False)
        except (OSError, ValueError) as error:
            # one bad entry; the others are good
            _LOGGER.warning("dropping a damaged cache entry: %s", error)
            self._faults += 1
            cache.delete(key, retry=False)
            return None
        if value is None:
            return None
        payload = _unwrap(value)
        if payload is None:
            _LOGGER.warning("dropping a damaged cache entry: its checksum is wrong")
            self._faults += 1
            cache.delete(key, retry=False)
        return payload

    def _put(self, key: str, value: bytes) -> None:
        self._opened().set(key, _HEADER.pack(_MAGIC, zlib.crc32(value)) + value, retry=False)

    def _remember(self, text: str, voice: str) -> None:
        self._opened()
        phrases = self._phrases
        if phrases is None:
            return
        key = cache_key({"text": text, "voice": voice})
        known = _phrase(phrases.get(key, retry=False))
        count = known.count + 1 if known else 1
        record = json.dumps({"text": text, "voice": voice, "count": count}, ensure_ascii=False)
        phrases.set(key, record.encode(), retry=False)

    def _most_used(self, limit: int) -> list[Phrase]:
        self._opened()
        # read past the library, which would write an access time and a hit for each row
        uri = f"{self._database('phrases').absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, timeout=_SQLITE_TIMEOUT_S, uri=True)) as rows:
            found = [_phrase(value) for (value,) in rows.execute("SELECT value FROM Cache")]
        often = [phrase for phrase in found if phrase is not None and phrase.count > 1]
        return sorted(often, key=lambda p: (-p.count, p.text))[:limit]

    def _clear(self) -> int:
        removed = int(self._opened().clear(retry=False))
        if self._phrases is not None:
            self._phrases.clear(retry=False)
        return removed

    def _stats(self) -> CacheStats:
        if not self._config.enabled:
            return self._empty_stats()
        cache = self._opened()
        hits, misses = cache.stats()
        return CacheStats(
            enabled=True,
            healthy=True,
            entries=len(cache),
            size_bytes=int(cache.volume()),
            limit_bytes=self._config.size_mb * 1_000_000,
            hits=int(hits),
            misses=int(misses),
            faults=self._faults,
        )

    def _empty_stats(self) -> CacheStats:
        limit = self._config.size_mb * 1_000_000
        enabled = self._config.enabled
        return CacheStats(enabled, not enabled, 0, 0, limit, 0, 0, self._faults)

    def _close(self) -> None:
        for cache in (self._segments, self._phrases):
            if cache is not None:
                try:
                    cache.close()
                except _FAULTS as error:
                    _LOGGER.debug("closing the cache: %s", error)
        self._segments = self._phrases = None

    def _set_aside_if_damaged(self, error: BaseException) -> None:
        """A database that is not one any more is moved away, so that a new one can be made."""
        if not isinstance(error, sqlite3.DatabaseError) or isinstance(
            error, sqlite3.OperationalError
        ):
            return
        try:
            # not the folder itself: it may be where a volume is mounted
            for name in ("segments", "phrases"):
                folder = self._folder / name
                aside = folder.with_name(f"{name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
            self._retry_at = 0.0
            _LOGGER.warning("the cache database was damaged; starting with an empty one")
        except OSError as fault:
            _LOGGER.debug("cannot move the damaged cache away: %s", fault)


def _check_unlocked(database: Path) -> None:
    """Raises `sqlite3.OperationalError` if another process holds a database; diskcache would wait
    for it for a minute."""
    if not database.exists():
        return
    with contextlib.closing(sqlite3.connect(database, timeout=_SQLITE_TIMEOUT_S)) as probe:
        probe.isolation_level = None
        probe.execute("BEGIN IMMEDIATE")
        probe.execute("ROLLBACK")


def _unwrap(value: object) -> bytes | None:
    if not isinstance(value, bytes) or len(value) < _HEADER.size:
        return None
    magic, checksum = _HEADER.unpack_from(value)
    payload = value[_HEADER.size :]
    return payload if magic == _MAGIC and zlib.crc32(payload) == checksum else None


def _phrase(value: object) -> Phrase | None:
    try:
        record = json.loads(value) if isinstance(value, bytes) else None
        return (
            Phrase(str(record["text"]), str(record["voice"]), int(record["count"]))
            if record
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None
