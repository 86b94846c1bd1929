"""`bench`: measures what the README claims."""

import argparse

from ..config import Config

HELP = "measure the engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    from ..bench import cli

    cli.add_arguments(parser)


def run(config: Config, options: argparse.Namespace) -> int:
    """Runs a benchmark."""
    from ..bench import cli

    return cli.run(config, options)
