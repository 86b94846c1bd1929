"""The CPU's decoder as one C++ function: built once for this machine with its own compiler, loaded
with ctypes. It runs on torch's OpenMP threads.

Without a compiler, or where anything else about it fails, `load()` returns None after one log line
and the plain torch layers are used.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_LOGGER = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("gpt.cpp")
_COMPILERS = ("g++", "c++")
# contraction off: a row's rounding must not depend on which rows stand beside it
_FLAGS = (
    "-O3 -march=native -std=c++17 -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fPIC -shared"
).split()
_BUILD_TIMEOUT_S = 120
ALIGNMENT = 64
"""Hidden and inner sizes must be multiples of this."""


class Linear(ctypes.Structure):
    """`struct Linear` of gpt.cpp."""

    _fields_ = [("weight", ctypes.c_void_p), ("scale", ctypes.c_void_p), ("sum", ctypes.c_void_p)]


class Layer(ctypes.Structure):
    """`struct Layer` of gpt.cpp."""

    _fields_ = [
        ("attention_norm", ctypes.c_void_p),
        ("qkv", Linear),
        ("out", Linear),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", Linear),
        ("down", Linear),
    ]


class Shape(ctypes.Structure):
    """`struct Shape` of gpt.cpp."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("layers", "hidden", "heads", "inner", "context", "slots")
    ]


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, built if need be; None where it cannot be had."""
    try:
        library = _opened()
    except (OSError, subprocess.SubprocessError) as error:
        _LOGGER.warning(
            "no compiled decoder (%s); plain torch is used, which is about half as fast",
            " ".join(str(error).split()),
        )
        return None
    pointer = ctypes.c_void_p
    library.gpt_new.argtypes = [ctypes.POINTER(Shape), ctypes.POINTER(Layer), *[pointer] * 4]
    library.gpt_new.restype = pointer
    library.gpt_forward.argtypes = [
        pointer,
        ctypes.c_int32,
        pointer,
        pointer,
        pointer,
        ctypes.c_int32,
    ]
    library.gpt_forward.restype = None
    library.gpt_delete.argtypes = [pointer]
    library.gpt_delete.restype = None
    return library


def _opened() -> ctypes.CDLL:
    file = _built()
    try:
        return ctypes.CDLL(str(file))
    except OSError:
        # cut short or foreign: made anew, once
        file.unlink(missing_ok=True)
        return ctypes.CDLL(str(_built()))


def _built() -> Path:
    """The library's file, from the cache folder or fresh from the compiler."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + " ".join(_FLAGS).encode() + _cpu().encode())
    folder = _cache_folder()
    target = folder / f"gpt-{digest.hexdigest()[:16]}.so"
    if target.exists():
        return target
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise OSError("g++ is not installed")
    handle, name = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(handle)
    try:
        result = subprocess.run(
            [*compiler.split(), *_FLAGS, str(_SOURCE), "-o", name],
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            raise OSError(f"{compiler} failed: {result.stderr.strip()[:300]}")
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _cache_folder() -> Path:
    """A folder of the user's own that libraries may be kept in, else one for this process."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(base).expanduser() / "wyoming-chattts"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="wyoming-chattts-"))


def _cpu() -> str:
    """What the library depends on beside its source: a folder may move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
