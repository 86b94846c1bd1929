"""`voices`: what voices there are."""

import argparse

from ..config import Config

HELP = "list the voices"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    parser.add_argument("action", choices=["list"], nargs="?", default="list")


def run(config: Config, options: argparse.Namespace) -> int:
    """Prints one voice a line, the default one first."""
    from ..voices import Voices

    for i, voice in enumerate(Voices(config).all()):
        mark = " (default)" if i == 0 else ""
        print(f"{voice.name}{mark}: {voice.description}")
    return 0
