"""Which benchmark to run, and over which checkpoint."""

import argparse
import contextlib
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..config import Config
from ..errors import ConfigError
from .report import Report

BENCHMARKS = {
    "engine": "the decoder beside the stock package: step, prefill, codec, load, memory",
    "busy": "a step beside another busy process, by how long threads spin",
    "codec": "the streaming codec's error by look-ahead, and its cost",
    "text": "the front end: time by kind of text",
    "quality": "precisions against fp32 on the same noise",
    "server": "a server under open-loop load over its socket",
    "ab": "a page for a blind comparison by ear",
    "seed": "a household's hundred texts with each improvement switched off",
    "faults": "a server under random faults of clients, engine, cache and process",
    "soak": "a household's days in minutes: memory, descriptors, threads, cache",
    "profile": "a flame graph of a synthesis (py-spy)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the benchmarks."""
    parser.add_argument(
        "what", choices=BENCHMARKS, help="; ".join(f"{k}: {v}" for k, v in BENCHMARKS.items())
    )
    parser.add_argument(
        "--size",
        choices=["tiny", "full"],
        default="full",
        help="synthetic checkpoint to make where --model-dir is not given",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON, Markdown and a plot")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="ab: texts, one a line")
    for side in ("a", "b"):
        parser.add_argument(
            f"--{side}", action="append", metavar="SECTION.KEY=VALUE", help=f"ab: {side.upper()}"
        )
    parser.add_argument("--requests", type=int, metavar="N", help="faults, soak: how many")
    parser.add_argument("--seed", type=int, default=1, help="faults, soak: of what happens when")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--no-stock", action="store_true", help="leave the stock package out")


def run(config: Config, options: argparse.Namespace) -> int:
    """Runs it."""
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    module = importlib.import_module(f".{options.what}", __package__)
    report = Report(options.what, options.out)
    with checkpoint_folder(config, options.size, needed=options.what != "text") as folder:
        module.measure(config, folder, options, report)
    report.finish()
    return 0


@contextlib.contextmanager
def checkpoint_folder(config: Config, size: str, *, needed: bool = True) -> Iterator[Path]:
    """The checkpoint of the settings, or a synthetic one that is gone afterwards."""
    if not needed:
        yield config.model_path
        return
    if config.model.dir:
        if not (config.model_path / "asset").is_dir():
            raise ConfigError(f"{config.model_path} holds no ChatTTS model")
        yield config.model_path
        return
    from ..engine.synthetic import synthesize_checkpoint

    with tempfile.TemporaryDirectory(prefix="wyoming-chattts-") as name:
        synthesize_checkpoint(Path(name), size, 1)
        yield Path(name)
