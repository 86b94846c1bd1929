"""The command line: parses, loads the settings, calls a command.

Commands live in `commands/`, one module each, imported on use, so that `--help` needs no torch.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__
from .addon_options import read_options
from .config import ENV_PREFIX, GOMP_SPINCOUNT, Config, load, parse_override
from .errors import ChatTTSServerError
from .logs import set_up

COMMANDS = ("serve", "say", "voices", "cache", "model", "bench", "doctor", "health")

# flags that Home Assistant people know from other Wyoming servers, and the settings behind them
_FLAGS: dict[str, str] = {
    "uri": "server.uri",
    "voice": "voices.default",
    "data_dir": "data_dir",
    "device": "engine.device",
    "precision": "engine.precision",
    "model_dir": "model.dir",
    "log_format": "log.format",
}


def run(argv: Sequence[str]) -> int:
    """Runs a command line; returns the exit status."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", GOMP_SPINCOUNT)
    arguments = list(argv)
    if not arguments or (
        arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")
    ):
        arguments.insert(0, "serve")
    options = _parser().parse_args(arguments)
    try:
        config = _settings(options)
        set_up(config.log)
        command = importlib.import_module(f".commands.{options.command}", __package__)
        return int(command.run(config, options))
    except ChatTTSServerError as error:
        print(f"wyoming-chattts: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of our output has gone; that is its right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wyoming-chattts",
        description="ChatTTS speech for Home Assistant over the Wyoming protocol.",
        epilog="Without a command, `serve` is meant.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f".commands.{name}", __package__)
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        _add_common(sub)
        for action in module.add_arguments(sub) or ():
            # `voices add … --data-dir DIR` as well as `voices --data-dir DIR add …`
            _add_common(action, argparse.SUPPRESS)
    return parser


def _add_common(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    group = parser.add_argument_group("settings")
    no = default if default is not None else False
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=default,
        help="settings file (see config.yaml)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[] if default is None else default,
        metavar="SECTION.KEY=VALUE",
        help="any setting",
    )
    for flag, metavar, text in (
        ("--data-dir", "DIR", "where model, cache and voices lie"),
        ("--model-dir", "DIR", "folder with ChatTTS's asset/"),
        ("--device", "DEVICE", "auto, cpu, cuda or cuda:N"),
        ("--precision", "PRECISION", "auto, fp32, bf16, fp16 or int8"),
    ):
        group.add_argument(flag, metavar=metavar, default=default, help=text)
    group.add_argument(
        "--log-format", choices=["text", "json"], default=default, help="of the lines of the log"
    )
    group.add_argument("--debug", action="store_true", default=no, help="log everything")


def _settings(options: argparse.Namespace) -> Config:
    overrides: dict[str, Any] = {}
    if getattr(options, "addon_options", None) is not None:
        overrides.update(read_options(options.addon_options))
    for flag, key in _FLAGS.items():
        value = getattr(options, flag, None)
        if value is not None:
            overrides[key] = value
    if getattr(options, "zeroconf", None) is not None:
        overrides["server.zeroconf"] = True
        if options.zeroconf:
            overrides["server.zeroconf_name"] = options.zeroconf
    if options.debug:
        overrides["log.level"] = "DEBUG"
    overrides.update(parse_override(text) for text in options.set)
    file = options.config
    if file is None and (named := os.environ.get(f"{ENV_PREFIX}CONFIG")):
        file = Path(named)
    return load(file, overrides=overrides)
