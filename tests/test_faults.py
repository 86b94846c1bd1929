"""The storm of `bench faults` in small, and the harness itself: it must see what is wrong."""

from pathlib import Path

import pytest

from wyoming_chattts.bench import faults
from wyoming_chattts.bench.clients import Answer

SEED, REQUESTS = 7, 120


@pytest.mark.slow
async def test_a_storm_of_faults_leaves_nothing_wrong(tiny_dir: Path) -> None:
    found = await faults.attack(tiny_dir, REQUESTS, SEED)
    assert found.wrong == []
    outcomes = {outcome for (kind, outcome) in found.counts if kind in faults._GOOD}
    assert "ok" in outcomes
    assert {kind for kind, _ in found.counts} > set(faults._BAD)
    assert found.describes and max(found.describes) < 2


@pytest.mark.parametrize(
    ("answer", "replaced", "wrong"),
    [
        (Answer("ok", b"\1\0" * 50), False, ""),
        (Answer("ok", b"\1\0" * 49), False, "differs"),
        (Answer("ok", b"\x7f\0" * 50), False, "differs"),
        (Answer("engine_failed", b"\1\0" * 10), False, ""),
        (Answer("engine_failed", b"\x7f\0" * 10), False, "before an error differs"),
        (Answer("silent"), False, "ended with silent"),
        (Answer("closed"), False, "ended with closed"),
        (Answer("closed", b"\1\0" * 10), True, ""),
        (Answer("error"), False, "ended with error"),
    ],
)
def test_the_harness_sees_what_is_wrong(answer: Answer, replaced: bool, wrong: str) -> None:
    found = faults.Findings()
    truth = {"text": b"\1\0" * 50}
    faults._judge("plain", "text", answer, replaced, found, truth)
    assert (wrong in found.wrong[0]) if wrong else found.wrong == []
