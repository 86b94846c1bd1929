"""What a benchmark prints and keeps: Markdown tables, one JSON file, a plot, a progress bar."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from .. import __version__

_T = TypeVar("_T")


@dataclass(slots=True)
class Report:
    """One run of a benchmark."""

    name: str
    out: Path | None = None
    results: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.results["machine"] = machine()

    def say(self, text: str = "") -> None:
        """Prints a line, and keeps it for the Markdown file."""
        print(text, flush=True)
        self.lines.append(text)

    def table(self, key: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Prints a Markdown table, and keeps its rows under `key`."""
        rows = [list(row) for row in rows]
        self.say("| " + " | ".join(header) + " |")
        self.say("|" + "|".join("---" for _ in header) + "|")
        for row in rows:
            self.say("| " + " | ".join(map(_cell, row)) + " |")
        self.say()
        self.results[key] = [dict(zip(header, row, strict=True)) for row in rows]

    def plot(self, draw: Callable[[Any], None]) -> None:
        """Draws into a matplotlib axes where matplotlib is installed and a folder is given."""
        if self.out is None:
            return
        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot
        except ImportError:
            self.say("(no plot: matplotlib is not installed; pip install 'wyoming-chattts[bench]')")
            return
        figure, axes = pyplot.subplots(figsize=(8, 4.5))
        draw(axes)
        figure.tight_layout()
        figure.savefig(self.out / f"{self.name}.png", dpi=120)
        pyplot.close(figure)

    def finish(self) -> None:
        """Writes the files, and ends standard output with one line of JSON."""
        if self.out is not None:
            text = json.dumps(self.results, ensure_ascii=False, indent=1)
            (self.out / f"{self.name}.json").write_text(text, encoding="utf-8")
            (self.out / f"{self.name}.md").write_text(
                "\n".join(self.lines) + "\n", encoding="utf-8"
            )
        print(json.dumps({"bench": self.name, **self.results}, ensure_ascii=False))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "gpu": gpu,
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def progress(items: Sequence[_T], name: str) -> Iterable[_T]:
    """The items, with a bar where standard error is a terminal."""
    from tqdm import tqdm

    bar: Iterable[_T] = tqdm(items, desc=name, disable=not sys.stderr.isatty())
    return bar


def median_ms(call: Callable[[], object], times: int) -> float:
    """Median time of a call, milliseconds."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return 1000 * statistics.median(taken)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of all do not exceed; NaN where there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def resident_mb(field_name: str = "VmRSS") -> float:
    """Resident memory of this process (`VmHWM` for its peak), MB; NaN where /proc is missing."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(field_name):
                return int(line.split()[1]) / 1000
    except OSError:
        pass
    return float("nan")
