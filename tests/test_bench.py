"""The benchmarks run anywhere, and the precisions keep to their limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from wyoming_chattts.bench.quality import compare
from wyoming_chattts.bench.report import percentile
from wyoming_chattts.bench.seed import texts
from wyoming_chattts.config import load

from .test_commands import command


def result(printed: str) -> Any:
    """The line of JSON that a benchmark ends its standard output with."""
    line = next(line for line in printed.splitlines() if line.startswith('{"bench"'))
    return json.loads(line)


@pytest.mark.parametrize(("what", "key"), [("text", "kinds"), ("codec", "lookahead")])
def test_a_benchmark_prints_a_table_and_writes_its_files(
    what: str, key: str, tiny_dir: Path, tmp_path: Path
) -> None:
    printed = command(
        *("bench", what, "--quick", "--out", str(tmp_path), "--model-dir", str(tiny_dir)),
        data=tmp_path,
    )
    last = result(printed)
    assert last["bench"] == what and last[key]
    assert json.loads((tmp_path / f"{what}.json").read_text())[key] == last[key]
    assert "|---|" in (tmp_path / f"{what}.md").read_text()
    assert "cpu" in last["machine"]


@pytest.mark.oracle
def test_the_engine_beats_the_stock_package(tiny_dir: Path, tmp_path: Path) -> None:
    printed = command(
        "bench", "engine", "--quick", "--model-dir", str(tiny_dir), "--set", "engine.device=cpu",
        data=tmp_path,
    )  # fmt: skip
    steps = result(printed)["steps"]
    ours = [row for row in steps if row["engine"].startswith("ours")]
    assert all(row["× stock"] > 1 for row in ours)


def test_precisions_stay_within_their_limits(tiny_dir: Path) -> None:
    config = load(environ={}, overrides={"engine.device": "cpu"})
    found = {q.precision: q for q in compare(config, tiny_dir, ["int8", "bf16", "fp16"], 48)}
    assert found["fp16"].kl < 1e-5 and found["fp16"].agreement > 0.99
    assert found["bf16"].kl < 1e-3 and found["bf16"].agreement > 0.97
    assert found["int8"].kl < 5e-3 and found["int8"].agreement > 0.93
    assert found["fp16"].mel_db > 55
    assert found["bf16"].mel_db > 40
    assert found["int8"].mel_db > 30


def test_the_household_says_many_things_twice() -> None:
    said = texts(100)
    assert len(said) == 100 and len(set(said)) == 35
    assert all(len(text) + 1 >= 10 and len(text) <= 50 for text in said)
    assert texts(100) == said


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(101))), 0.95) == 95.0
