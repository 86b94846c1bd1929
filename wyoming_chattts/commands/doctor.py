"""`doctor`: what this installation has, what is wrong with it, and what to do."""

import argparse
import asyncio
import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from urllib.parse import urlparse

from .. import __version__
from ..config import Config
from ..engine.layout import present
from ..errors import ChatTTSServerError

HELP = "print device, model, cache and versions, and what is wrong"

_PACKAGES = ("torch", "wyoming", "tokenizers", "safetensors", "diskcache", "wetext", "ChatTTS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No flags of its own."""


def run(config: Config, options: argparse.Namespace) -> int:
    """Prints one line a check; the status says whether speech with ChatTTS is possible."""
    checks: list[tuple[str, Callable[[Config], tuple[bool, str]]]] = [
        ("versions", _versions),
        ("device", _device),
        ("model", _model),
        ("fallback", _fallback),
        ("voices", _voices),
        ("cache", _cache),
        ("address", _address),
    ]
    good = True
    for name, check in checks:
        try:
            ok, text = check(config)
        except ChatTTSServerError as error:
            ok, text = False, str(error)
        good &= ok
        print(f"{'ok  ' if ok else 'FAIL'} {name:<9} {text}")
    return 0 if good else 1


def _versions(_config: Config) -> tuple[bool, str]:
    versions = [f"wyoming-chattts {__version__}", f"Python {platform.python_version()}"]
    missing = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    text = ", ".join(versions)
    if missing:
        return False, f"{text}; missing: {', '.join(missing)} (pip install wyoming-chattts)"
    return True, f"{text} ({sys.executable})"


def _device(config: Config) -> tuple[bool, str]:
    import torch

    from ..engine.device import pick_device
    from ..engine.quantize import resolve

    device = pick_device(config.engine.device)
    precision = resolve(config.engine.precision, device)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        memory = torch.cuda.get_device_properties(device).total_memory / 1e9
        return True, f"{name}, {memory:.1f} GB, {precision}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    decoder = ""
    if precision == "int8" and config.engine.compiled:
        from ..engine import native

        if native.load() is None:
            return False, f"CPU, {cores} usable cores, int8 without the compiled decoder: see above"
        decoder = ", compiled decoder"
    return True, f"CPU, {cores} usable cores, {precision}{decoder}"


def _model(config: Config) -> tuple[bool, str]:
    from ..engine.checkpoint import HashMemo, hub_endpoint, open_checkpoint

    if not present(config.model_path):
        endpoint = config.model.endpoint or hub_endpoint()
        return False, (
            f"{config.model_path} holds no ChatTTS model: the server fetches it from {endpoint}; "
            "or "
            "run `wyoming-chattts model download`, or set model.dir to a folder with asset/"
        )
    memo = HashMemo(config.data_path / "hashes.json")
    checkpoint = open_checkpoint(config.model_path, verify=config.model.verify, memo=memo)
    kind = "synthetic: noise, not a voice" if checkpoint.synthetic else "ChatTTS"
    return True, f"{config.model_path} ({kind}), hash {checkpoint.hash[:16]}"


def _fallback(config: Config) -> tuple[bool, str]:
    if not config.fallback.enabled:
        return True, "off (fallback.enabled)"
    from ..engine.fallback import FallbackEngine

    with contextlib.closing(FallbackEngine(config.fallback)) as engine:
        engine.warm_up()
    return True, f"espeak-ng, {config.fallback.voice_en} and {config.fallback.voice_zh}"


def _voices(config: Config) -> tuple[bool, str]:
    from ..voices import Voices

    voices = Voices(config)
    before = len(voices.all())
    voices.resolve()
    after = voices.all()
    text = f"{len(after)} voices, default {voices.default.name}"
    if len(after) < before:
        return False, f"{text}; {before - len(after)} cannot be read, see above"
    return True, text


def _cache(config: Config) -> tuple[bool, str]:
    from ..cache import SegmentCache

    async def stats() -> tuple[bool, str]:
        cache = SegmentCache(config.cache_path, config.cache)
        try:
            found = await cache.stats()
        finally:
            await cache.close()
        if not found.enabled:
            return True, "off (cache.enabled)"
        if not found.healthy:
            return False, f"{config.cache_path} cannot be used: check its owner and free space"
        free = shutil.disk_usage(config.cache_path).free
        text = (
            f"{config.cache_path}, {found.entries} entries, {found.size_bytes / 1e6:.1f} of "
            f"{found.limit_bytes / 1e6:.0f} MB, {free / 1e9:.1f} GB free"
        )
        return True, text

    return asyncio.run(stats())


def _address(config: Config) -> tuple[bool, str]:
    uri = urlparse(config.server.uri)
    if uri.scheme != "tcp" or uri.port is None:
        return True, config.server.uri
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((uri.hostname or "", uri.port))
        except OSError as error:
            return True, f"{config.server.uri} is in use or not ours: {error.strerror}"
    return True, f"{config.server.uri} is free"
