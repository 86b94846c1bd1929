"""`bench busy`: a step and the codec beside another busy process, by how long threads spin.

libgomp reads `GOMP_SPINCOUNT` when it is loaded, so each measurement is a process of its own; they
take turns, with and without a process beside them that wants one core all the time.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..config import GOMP_SPINCOUNT, Config
from .report import Report, progress

_LIBGOMPS_OWN = "300000"
_MEASURE = """
import json, sys
from pathlib import Path
from wyoming_chattts.bench.engine import SHORT_TEXT, Ours
from wyoming_chattts.config import load
ours = Ours(load(environ={}), Path(sys.argv[1]), "auto", 1)
ours.engine.warm_up()
step, _ = ours.step_ms(1, SHORT_TEXT)
print(json.dumps([step, 1000 * ours.codec_share()]))
"""


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table."""
    cases = list(itertools.product((_LIBGOMPS_OWN, GOMP_SPINCOUNT), (False, True)))
    taken: dict[tuple[str, bool], list[list[float]]] = {case: [] for case in cases}
    for _ in progress(range(2 if options.quick else 5), "rounds"):
        for spins, busy in cases:
            with _busy_process() if busy else contextlib.nullcontext():
                taken[spins, busy].append(_figures(folder, spins))
    rows = []
    for spins, busy in cases:
        steps, codecs = zip(*taken[spins, busy], strict=True)
        beside = "a busy process" if busy else "nothing"
        rows.append(
            [int(spins), beside, statistics.median(steps), max(steps), statistics.median(codecs)]
        )
    report.table(
        "spins",
        ["GOMP_SPINCOUNT", "beside", "ms/step", "slowest run ms/step", "codec ms per s"],
        rows,
    )


def _figures(folder: Path, spins: str) -> list[float]:
    environment = {**os.environ, "GOMP_SPINCOUNT": spins}
    environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, "-c", _MEASURE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextlib.contextmanager
def _busy_process() -> Iterator[None]:
    """Something else wants one core, inside the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()
