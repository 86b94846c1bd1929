"""The persistent cache: what it keeps, what it refuses, and that no damage stops it."""

import asyncio
import contextlib
import ctypes
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from wyoming_chattts import cache as cache_module
from wyoming_chattts.bench import disk_faults
from wyoming_chattts.cache import SegmentCache, cache_key
from wyoming_chattts.config import CacheConfig

_PAGES = ("page_count", "page_size")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
async def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SegmentCache]:
    monkeypatch.setattr(cache_module, "_RETRY_S", 0.0)
    cache = SegmentCache(folder, CacheConfig(size_mb=1))
    yield cache
    await cache.close()


def _database(folder: Path) -> Path:
    return folder / "segments" / "cache.db"


def _rows(folder: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    with sqlite3.connect(_database(folder)) as db:
        rows = db.execute(sql, values).fetchall()
    db.close()
    return rows


@pytest.mark.parametrize("size", [0, 10, 200_000])
async def test_values_come_back(cache: SegmentCache, size: int) -> None:
    value = os.urandom(size)
    assert await cache.get("k") is None
    await cache.put("k", value)
    assert await cache.get("k") == value
    stats = await cache.stats()
    assert (stats.hits, stats.misses, stats.entries, stats.hit_rate) == (1, 1, 1, 0.5)


async def test_values_outlive_the_process(folder: Path) -> None:
    first = SegmentCache(folder, CacheConfig())
    await first.put("k", b"x" * 50_000)
    await first.close()
    second = SegmentCache(folder, CacheConfig())
    assert await second.get("k") == b"x" * 50_000
    await second.close()


async def test_the_size_is_bounded_and_the_least_recently_used_goes_first(
    cache: SegmentCache,
) -> None:
    for i in range(60):
        await cache.put(f"k{i}", bytes(50_000))
        await cache.get("k0")
    stats = await cache.stats()
    assert stats.size_bytes < 1_200_000
    assert await cache.get("k0") is not None
    assert await cache.get("k1") is None
    assert await cache.get("k59") is not None


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(Bomb.path),))

    path = Path()


@pytest.mark.parametrize("where", ["value", "key"])
async def test_a_poisoned_row_is_never_unpickled(
    where: str, cache: SegmentCache, folder: Path, tmp_path: Path
) -> None:
    Bomb.path = tmp_path / "exploded"
    await cache.put("k", b"good")
    bomb = pickle.dumps(Bomb())
    if where == "value":
        _rows(folder, "UPDATE Cache SET mode = 4, value = ?, filename = NULL", bomb)
    else:
        _rows(folder, "UPDATE Cache SET raw = 0, key = ?", bomb)
    assert await cache.get("k") is None
    await cache.most_used(5)
    await cache.clear()
    assert not Bomb.path.exists()
    await cache.put("k", b"again")
    assert await cache.get("k") == b"again"


async def test_a_value_that_points_out_of_the_folder_is_not_read(
    cache: SegmentCache, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    await cache.put("k", bytes(50_000))
    _rows(folder, "UPDATE Cache SET filename = '../../secret'")
    assert await cache.get("k") is None


async def test_a_damaged_value_is_a_miss(cache: SegmentCache, folder: Path) -> None:
    await cache.put("k", bytes(50_000))
    (file,) = (folder / "segments").rglob("*.val")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert await cache.get("k") is None
    await cache.put("k", b"new")
    assert await cache.get("k") == b"new"


@pytest.mark.parametrize("size", [100, 5000])
async def test_a_database_overwritten_with_junk_is_replaced(folder: Path, size: int) -> None:
    before = SegmentCache(folder, CacheConfig())
    await before.put("k", b"old")
    await before.close()
    for path in (folder / "segments").glob("cache.db*"):
        path.write_bytes(os.urandom(size))
    fresh = SegmentCache(folder, CacheConfig())
    assert await fresh.get("k") is None
    await fresh.put("k", b"new")
    assert await fresh.get("k") == b"new"
    await fresh.close()


@pytest.fixture
def mounted(folder: Path) -> Iterator[Path]:
    """The cache's folder as a file system of its own, as a container's volume is."""
    folder.mkdir(parents=True, exist_ok=True)
    if not disk_faults.mount(folder, "size=32m"):
        pytest.skip("no file system can be mounted here")
    yield folder
    disk_faults.unmount(folder)


async def test_a_damaged_database_on_a_volume_is_replaced(mounted: Path) -> None:
    before = SegmentCache(mounted, CacheConfig())
    await before.put("k", b"old")
    await before.close()
    (mounted / "segments" / "cache.db").write_bytes(os.urandom(5000))
    fresh = SegmentCache(mounted, CacheConfig())
    await fresh.get("k")
    await fresh.put("k", b"new")
    assert await fresh.get("k") == b"new"
    await fresh.close()


async def test_a_cache_does_not_outgrow_its_volume(mounted: Path) -> None:
    cache = SegmentCache(mounted, CacheConfig(size_mb=512))
    for i in range(80):
        await cache.put(f"k{i}", bytes(500_000))
    stats = await cache.stats()
    assert stats.faults == 0 and 4_000_000 < stats.size_bytes < 24_000_000
    assert await cache.get("k79") == bytes(500_000)
    await cache.close()


async def test_a_volume_that_others_fill_costs_no_exception(
    mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_RETRY_S", 0.0)
    cache = SegmentCache(mounted, CacheConfig())
    await cache.put("k", bytes(500_000))
    filler = disk_faults.fill(mounted)
    await cache.put("more", bytes(500_000))
    assert (await cache.stats()).faults > 0
    filler.unlink()
    await cache.put("again", bytes(500_000))
    assert await cache.get("again") == await cache.get("k") == bytes(500_000)
    await cache.close()


async def test_a_database_overwritten_while_open_costs_no_exception(
    cache: SegmentCache, folder: Path
) -> None:
    await cache.put("k", b"old")
    for path in (folder / "segments").glob("cache.db*"):
        path.write_bytes(os.urandom(9000))
    for _ in range(3):
        await cache.get("k")
        await cache.put("k", b"new")
    assert await cache.get("k") == b"new"


_READS_WHAT_IS_CUT_OFF = """
import asyncio, os, sys
from pathlib import Path
from wyoming_chattts import cache
from wyoming_chattts.config import CacheConfig
cache._RETRY_S = 0.0
folder = Path(sys.argv[1])
keys = [f"k{i}" for i in range(300)]
async def main():
    written = cache.SegmentCache(folder, CacheConfig())
    for key in keys:
        await written.put(key, bytes(9000))
    await written.close()
    read = cache.SegmentCache(folder, CacheConfig())
    assert await read.get("k0") == bytes(9000)
    os.truncate(folder / "segments" / "cache.db", int(sys.argv[2]))
    for key in keys:
        assert await read.get(key) in (None, bytes(9000))
    for key in ("x", "y"):
        await read.put(key, b"new")
    print(await read.get("y"))
    await read.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("size", [0, 8192])
def test_a_database_cut_off_while_open_ends_no_process(folder: Path, size: int) -> None:
    command = [sys.executable, "-c", _READS_WHAT_IS_CUT_OFF, str(folder), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "b'new'"


async def test_a_folder_deleted_while_running_is_made_again(
    cache: SegmentCache, folder: Path
) -> None:
    await cache.put("k", b"old")
    shutil.rmtree(folder)
    assert await cache.get("k") is None
    await cache.put("k", b"new")
    assert await cache.get("k") == b"new"


async def test_a_folder_that_cannot_be_made_costs_speed_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = SegmentCache(tmp_path / "file" / "cache", CacheConfig())
    await cache.put("k", b"x")
    assert await cache.get("k") is None
    assert not (await cache.stats()).healthy
    # said once, not at every request
    assert caplog.text.count("cannot be used") == 1
    await cache.close()


async def test_a_locked_database_is_passed_over_in_time(cache: SegmentCache, folder: Path) -> None:
    await cache.put("k", b"x")
    lock = sqlite3.connect(_database(folder), isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await cache.get("k")
        await cache.put("other", b"y")
        assert loop.time() - begin < 2
        # a server that starts now is not held up either
        begin = loop.time()
        late = SegmentCache(folder, CacheConfig())
        assert await late.get("k") is None
        await late.close()
        assert loop.time() - begin < 2
    finally:
        lock.rollback()
        lock.close()
    await cache.put("other", b"y")
    assert await cache.get("other") == b"y"


async def test_phrases_are_counted(cache: SegmentCache, folder: Path) -> None:
    def kept() -> list[object]:
        with contextlib.closing(sqlite3.connect(folder / "phrases" / "cache.db")) as rows:
            uses = rows.execute("SELECT access_time, access_count FROM Cache").fetchall()
            return [uses, rows.execute("SELECT value FROM Settings WHERE key = 'hits'").fetchall()]

    for text, times in (("often", 3), ("twice", 2), ("once", 1)):
        for _ in range(times):
            await cache.remember(text, "v")
    await cache.remember("x" * 1000, "v")
    before = kept()
    found = await cache.most_used(10)
    # a look at the list disturbs nothing
    assert kept() == before
    assert [(p.text, p.count) for p in found] == [("often", 3), ("twice", 2)]
    assert [p.text for p in await cache.most_used(1)] == ["often"]


async def test_the_list_of_phrases_is_small_where_the_cache_is(
    cache: SegmentCache, folder: Path
) -> None:
    for i in range(1500):
        await cache.remember(f"{i} " + "x" * 250, "v")
        await cache.remember("often", "v")
    with contextlib.closing(sqlite3.connect(folder / "phrases" / "cache.db")) as rows:
        pages, each = (rows.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
    assert pages * each < 300_000
    assert [p.text for p in await cache.most_used(1)] == ["often"]


async def test_sqlite_holds_little_in_memory(folder: Path) -> None:
    try:
        used = ctypes.CDLL(sys.modules["_sqlite3"].__file__).sqlite3_memory_used
    except (AttributeError, OSError):
        pytest.skip("this Python does not show SQLite's own figures")
    used.restype = ctypes.c_int64
    cache = SegmentCache(folder, CacheConfig())
    await cache.remember("first", "v")
    before = used()
    for i in range(4000):
        await cache.remember(f"{i} " + "x" * 250, "v")
    assert (folder / "phrases" / "cache.db").stat().st_size > 1_500_000
    assert used() - before < 500_000
    await cache.close()


async def test_clear_removes_everything(cache: SegmentCache) -> None:
    await cache.put("a", b"1")
    await cache.put("b", b"2")
    assert await cache.clear() == 2
    assert (await cache.stats()).entries == 0


async def test_a_cache_that_is_off_keeps_nothing(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "c", CacheConfig(enabled=False))
    await cache.put("k", b"x")
    assert await cache.get("k") is None
    assert not (tmp_path / "c").exists()
    await cache.close()


def test_keys_differ_in_every_part() -> None:
    base = {"text": "a", "speaker": None, "sampling": [0.3, 1]}
    keys = {cache_key(base)}
    for change in ({"text": "b"}, {"speaker": "00"}, {"sampling": [0.3, 2]}):
        keys.add(cache_key(base | change))
    assert len(keys) == 4
