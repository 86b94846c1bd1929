"""`health`: whether a server answers; for containers and watchdogs."""

import argparse
import asyncio
from urllib.parse import urlparse

from ..config import Config

HELP = "ask a running server whether it answers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    parser.add_argument("--uri", help="address of the server (default: the one of the settings)")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS")


def run(config: Config, options: argparse.Namespace) -> int:
    """Prints what answered; status 0 if a server described itself in time."""
    uri = reachable(config.server.uri)
    try:
        print(asyncio.run(_describe(uri, options.timeout)))
    except (OSError, TimeoutError, EOFError) as error:
        print(f"{uri} does not answer: {error or 'time is up'}")
        return 1
    return 0


def reachable(uri: str) -> str:
    """An address to call for one to listen on: wildcards become loopback."""
    parts = urlparse(uri)
    if parts.scheme == "tcp" and parts.hostname in ("0.0.0.0", "::", "*"):
        host = "[::1]" if parts.hostname == "::" else "127.0.0.1"
        return f"tcp://{host}:{parts.port}"
    return uri


async def _describe(uri: str, timeout: float) -> str:
    from wyoming.client import AsyncClient
    from wyoming.info import Describe, Info

    async with asyncio.timeout(timeout), AsyncClient.from_uri(uri) as client:
        await client.write_event(Describe().event())
        while True:
            event = await client.read_event()
            if event is None:
                raise EOFError("it closed the connection")
            if Info.is_type(event.type):
                program = Info.from_event(event).tts[0]
                return f"{uri}: {program.name} {program.version}, {len(program.voices)} voices"
