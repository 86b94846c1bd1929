"""`model`: download, verify, or make a synthetic checkpoint."""

import argparse
from pathlib import Path

from ..config import Config
from ..errors import ConfigError

HELP = "download or verify the model, or make a synthetic one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    parser.add_argument(
        "action",
        choices=["download", "verify", "synthesize"],
        help="fetch the weights from the hub; check the files; or write a checkpoint of random "
        "numbers, whose speech is noise, not a voice",
    )
    parser.add_argument("dir", type=Path, nargs="?", help="synthesize: where to")
    parser.add_argument("--size", choices=["tiny", "full"], default="tiny", help="synthesize")
    parser.add_argument("--seed", type=int, default=1, help="synthesize")


def run(config: Config, options: argparse.Namespace) -> int:
    """Does what was asked."""
    if options.action == "synthesize":
        if options.dir is None:
            raise ConfigError("model synthesize: give a folder")
        from ..engine.synthetic import synthesize_checkpoint

        print("what this checkpoint will say is noise, not a voice: its weights are random numbers")
        synthesize_checkpoint(options.dir, options.size, options.seed, print)
        return 0
    from ..engine.checkpoint import HashMemo, open_checkpoint

    if options.action == "download":
        from ..model import fetch

        fetch(config)
    checkpoint = open_checkpoint(
        config.model_path,
        verify=config.model.verify,
        memo=HashMemo(config.data_path / "hashes.json"),
    )
    kind = "synthetic: noise, not a voice" if checkpoint.synthetic else "ChatTTS"
    print(f"{config.model_path}: all files are right ({kind}), model hash {checkpoint.hash[:16]}")
    return 0
