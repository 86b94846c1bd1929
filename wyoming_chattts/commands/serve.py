"""`serve`: the Wyoming server."""

import argparse
from pathlib import Path

from ..config import Config

HELP = "run the Wyoming server (default)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    parser.add_argument("--uri", help="tcp://HOST:PORT or unix://PATH")
    parser.add_argument("--voice", help="default voice")
    parser.add_argument(
        "--addon-options",
        type=Path,
        metavar="FILE",
        help="options of the Home Assistant add-on; stronger than --config",
    )
    parser.add_argument(
        "--zeroconf",
        nargs="?",
        const="",
        metavar="NAME",
        help="let Home Assistant find the server on the network",
    )


def run(config: Config, options: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    from ..server import serve

    return serve(config)
