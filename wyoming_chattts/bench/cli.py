"""Which benchmark to run."""

import argparse

from ..config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the benchmarks."""
    parser.add_argument("what", choices=["engine"])


def run(config: Config, options: argparse.Namespace) -> int:
    """Runs it."""
    return 0
