"""The benchmarks run anywhere, and the precisions keep to their limits."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wyoming_chattts.bench.quality import compare
from wyoming_chattts.bench.report import percentile
from wyoming_chattts.bench.seed import texts
from wyoming_chattts.bench.soak import _slope
from wyoming_chattts.config import load

from .harness import equal
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


def test_the_blind_comparison_page_holds_what_it_needs(tiny_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("Good </script> morning.\n早上好。\n", encoding="utf-8")
    arguments = ["bench", "ab", "--model-dir", str(tiny_dir), "--texts", str(tmp_path / "texts")]
    command(*arguments, "--b", "engine.precision=fp32", "--out", str(tmp_path), data=tmp_path)
    page = (tmp_path / "ab.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")
    data = page.partition('id="data">')[2].partition("</script>")[0]
    found = json.loads(data)
    assert found["names"] == ["as it is", "engine.precision=fp32"]
    assert [pair["text"] for pair in found["pairs"]] == ["Good </script> morning.", "早上好。"]
    for pair in found["pairs"]:
        wavs = [base64.b64decode(pair[side]) for side in ("a", "b")]
        assert all(wav[:4] == b"RIFF" and len(wav) > 20_000 for wav in wavs)
        assert not equal(*wavs)
    assert "differ" in command(*arguments, "--out", str(tmp_path), data=tmp_path, status=2)


def test_the_error_of_a_slope_covers_samples_that_resemble_those_before() -> None:
    chance = np.random.default_rng(3)
    hours = np.linspace(0, 1, 60)

    def off(values: Any) -> float:
        slope, error = _slope(hours, values)
        return abs(slope - 5) / error

    steps = [np.cumsum(chance.normal(size=60)) for _ in range(200)]
    noise = [chance.normal(size=60) for _ in range(200)]
    # of 200, a normal error is off by more than two of its own about nine times
    assert sum(off(5 * hours + rest) > 2 for rest in noise) < 30
    # steps that stay resemble growth; the error says so more often than not
    assert sum(off(5 * hours + rest) > 2 for rest in steps) < 100
    assert _slope(hours, 5 * hours)[1] == pytest.approx(0, abs=1e-6)


def test_a_soak_counts_and_measures(tiny_dir: Path, tmp_path: Path) -> None:
    printed = command(
        *("bench", "soak", "--requests", "30", "--out", str(tmp_path)),
        *("--model-dir", str(tiny_dir)),
        data=tmp_path,
    )
    last = result(printed)
    assert {row["figure"] for row in last["growth"]} == {"MB", "descriptors", "threads", "cache MB"}
    outcomes = {row["outcome"]: row["times"] for row in last["outcomes"]}
    assert sum(outcomes.values()) == 30 and outcomes["ok"] > 15
    assert set(outcomes) <= {"ok", "describe", "went away"}
