"""Which device to use, how many threads, and whether an error means that the device is lost."""

import os

import torch

from ..errors import ConfigError

_FATAL_MARKS = (
    "device-side assert",
    "an illegal memory access",
    "unspecified launch failure",
    "unknown error",
    "driver shutting down",
    "device is lost",
    "uncorrectable ecc",
    "misaligned address",
    "gpu has fallen off the bus",
)


def pick_device(name: str) -> torch.device:
    """The device of a setting: `auto`, `cpu`, `cuda` or `cuda:1`. Raises `ConfigError`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"engine.device: {name!r} is not a device") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"engine.device: {name} is asked for, but torch finds no CUDA device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"engine.device: there is no {name}")
    elif device.type != "cpu":
        raise ConfigError(f"engine.device: {name!r} is not supported (cpu, cuda)")
    return device


def set_threads(wanted: int) -> int:
    """Sets torch's threads; 0 means all usable cores."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = wanted or usable or 1
    torch.set_num_threads(threads)
    return threads


def allocated_bytes(device: str) -> int:
    """Memory that tensors hold on a CUDA device."""
    return int(torch.cuda.memory_allocated(device))


def is_fatal(error: BaseException) -> bool:
    """Whether an error means that this process cannot use its GPU again.

    CUDA reports such errors from every later call too; only a new process helps.
    """
    if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
        return False
    text = str(error).lower()
    return "cuda" in text and any(mark in text for mark in _FATAL_MARKS)
