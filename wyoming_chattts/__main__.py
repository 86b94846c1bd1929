"""Entry point of `wyoming-chattts` and `python -m wyoming_chattts`."""

import sys

from .cli import run


def main() -> None:
    """Runs the command line and exits with its status."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
