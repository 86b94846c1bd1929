"""`cache`: figures, emptying and filling of the persistent cache."""

import argparse
import asyncio
from pathlib import Path

from ..config import Config, read_lines
from ..errors import ConfigError

HELP = "show, empty or fill the cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    parser.add_argument("action", choices=["stats", "clear", "warm"])
    parser.add_argument("--file", type=Path, help="warm: phrases, one a line")
    parser.add_argument("--voice", help="warm: name of a voice")


def run(config: Config, options: argparse.Namespace) -> int:
    """Does what was asked."""
    if options.action == "warm":
        return asyncio.run(_warm(config, options))
    return asyncio.run(_show_or_clear(config, options.action))


async def _show_or_clear(config: Config, action: str) -> int:
    from ..cache import SegmentCache

    cache = SegmentCache(config.cache_path, config.cache)
    try:
        if action == "clear":
            print(f"removed {await cache.clear()} entries from {config.cache_path}")
            return 0
        stats = await cache.stats()
        phrases = await cache.most_used(10)
    finally:
        await cache.close()
    state = "in use" if stats.enabled else "off (cache.enabled)"
    if not stats.healthy:
        state = "cannot be read"
    print(f"folder   {config.cache_path} ({state})")
    print(f"entries  {stats.entries}")
    print(f"size     {stats.size_bytes / 1e6:.1f} of {stats.limit_bytes / 1e6:.0f} MB")
    print(f"lookups  {stats.hits} hits, {stats.misses} misses ({100 * stats.hit_rate:.0f} % hit)")
    for phrase in phrases:
        print(f"{phrase.count:>6} × {phrase.text} ({phrase.voice})")
    return 0 if stats.healthy else 1


async def _warm(config: Config, options: argparse.Namespace) -> int:
    from ..offline import offline_speech
    from ..speech import whole

    phrases = list(config.warmup.phrases)
    path = options.file or (Path(config.warmup.file) if config.warmup.file else None)
    if path is not None:
        phrases += read_lines(path)
    if not phrases:
        raise ConfigError("cache warm: no phrases (give --file, or set warmup.phrases)")

    async def discard(_pcm: bytes) -> None:
        """Nobody listens."""

    async with offline_speech(config) as (speech, voices):
        voice = voices.find(options.voice)
        for i, phrase in enumerate(phrases, 1):
            timings = await speech.speak(whole(phrase), voice, discard)
            known = timings.cache_hits == timings.segments
            print(f"{i}/{len(phrases)} {'known' if known else 'made '} {phrase}")
    return 0
