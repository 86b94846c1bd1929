"""The harness itself: it must see what is wrong."""

import pytest

from wyoming_chattts.bench import faults
from wyoming_chattts.bench.clients import Answer


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


def test_the_harness_sees_what_is_kept() -> None:
    before = {"descriptors": 15, "threads": 7, "MB": 700, "tasks": 9, "slots": 0, "contexts": 0}
    assert faults._leaks(before, before | {"MB": 780, "descriptors": 17}) == []
    assert len(faults._leaks(before, before | {"MB": 1000, "descriptors": 30})) == 2
    assert faults._leaks(before, before | {"contexts": 1}) == ["contexts: 0 before, 1 after"]
