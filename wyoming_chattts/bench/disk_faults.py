"""Faults of the disk, for `bench faults` and for tests: each breaks something for a moment, and
leaves it to the server to get over it.
"""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

_HELD_S = 0.5


def mount(folder: Path, options: str) -> bool:
    """Puts a file system in memory over a folder; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return shutil.which("mount") is not None and not _quiet(command)


def unmount(folder: Path) -> None:
    """Takes it away again, whoever still has files of it open."""
    _quiet(["umount", "-l", str(folder)])


def _quiet(command: list[str]) -> int:
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


def fill(folder: Path) -> Path:
    """Fills the file system of a folder; returns the file to remove."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


def spoil(kind: str, folder: Path) -> None:
    """Does one of the things that happen to the folder of a cache, and undoes what would not mend
    itself (blocks for up to half a second)."""
    with contextlib.suppress(OSError, sqlite3.Error):
        _SPOILERS[kind](folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _damage(folder: Path) -> None:
    with (folder / "segments" / "cache.db").open("r+b") as file:
        file.write(os.urandom(4096))


def _cut_off(folder: Path) -> None:
    database = folder / "segments" / "cache.db"
    os.truncate(database, database.stat().st_size // 2 // 4096 * 4096)


def _block(folder: Path) -> None:
    segments = folder / "segments"
    shutil.rmtree(segments, ignore_errors=True)
    segments.write_bytes(b"in the way")
    time.sleep(_HELD_S)
    segments.unlink(missing_ok=True)


def _lock(folder: Path) -> None:
    database = folder / "segments" / "cache.db"
    with contextlib.closing(sqlite3.connect(database, timeout=0.1)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(_HELD_S)


def _leave_no_room(folder: Path) -> None:
    filler = fill(folder)
    try:
        time.sleep(_HELD_S)
    finally:
        filler.unlink(missing_ok=True)


def _cover(folder: Path) -> None:
    if mount(folder, "ro"):
        try:
            time.sleep(_HELD_S)
        finally:
            unmount(folder)


_SPOILERS = {
    "cache removed": _remove,
    "cache damaged": _damage,
    "cache cut off": _cut_off,
    "cache blocked": _block,
    "cache locked": _lock,
    "cache full": _leave_no_room,
    "cache read-only": _cover,
}


def rewrite(path: Path, chance: random.Random) -> None:
    """Writes a file anew with what it held: in place, as `cp` does, and half there for a moment; or
    as a download is, by another file of its name."""
    contents = path.read_bytes()
    if chance.random() < 0.5:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(contents)
        fresh.replace(path)
        return
    with path.open("wb") as file:
        file.write(contents[: len(contents) // 2])
        file.flush()
        time.sleep(_HELD_S / 2)
        file.write(contents[len(contents) // 2 :])
