"""`bench profile`: where the time of a synthesis goes, as a flame graph (SVG) and a table."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ConfigError
from .report import Report

_TEXT = "The living room light is on, and the door to the garden is closed. " * 3
_RATE_HZ = 200
_ROWS = 20


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Records `say` twice: once for the picture, once for the table."""
    beside = Path(sys.executable).with_name("py-spy")
    sampler = str(beside) if beside.exists() else shutil.which("py-spy")
    if sampler is None:
        raise ConfigError("bench profile: py-spy is missing (pip install 'wyoming-chattts[bench]')")
    with tempfile.TemporaryDirectory() as work:
        speak = [sys.executable, "-m", "wyoming_chattts", "say", _TEXT, "--set"]
        speak += ["cache.enabled=false", "--model-dir", str(folder), "--data-dir", work]
        speak += ["--device", config.engine.device, "--precision", config.engine.precision]
        speak += ["-o", f"{work}/out.wav"]
        picture = (options.out or Path()) / "profile.svg"
        _record(sampler, "flamegraph", picture, speak)
        stacks = Path(work) / "stacks.txt"
        _record(sampler, "raw", stacks, speak)
        rows = _hottest(stacks.read_text(encoding="utf-8"))
    report.say(f"Flame graph: {picture}")
    report.say()
    report.table("functions", ["function", "own share", "with what it calls"], rows)


def _record(sampler: str, kind: str, out: Path, command: list[str]) -> None:
    line = [sampler, "record", "--format", kind, "--rate", str(_RATE_HZ), "--output", str(out)]
    result = subprocess.run([*line, "--", *command], capture_output=True, text=True, check=False)
    if not out.exists():
        raise ConfigError(f"bench profile: py-spy failed: {result.stderr.strip()[-300:]}")


def _hottest(text: str) -> list[list[Any]]:
    """Functions by samples, from stacks as `a;b;c 12` a line."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [frame.rsplit(":", 1)[0] for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        for frame in set(frames):
            within[frame] += int(count)
    total = max(1, sum(own.values()))
    return [[name, n / total, within[name] / total] for name, n in own.most_common(_ROWS)]
