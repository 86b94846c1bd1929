"""The storm of `bench faults` in small."""

from pathlib import Path

import pytest

from wyoming_chattts.bench import faults

SEED, REQUESTS = 5, 120


@pytest.mark.slow
async def test_a_storm_of_faults_leaves_nothing_wrong(tiny_dir: Path) -> None:
    found = await faults.attack(tiny_dir, REQUESTS, SEED)
    assert found.wrong == []
    outcomes = {outcome for (kind, outcome) in found.counts if kind in faults._GOOD}
    assert "ok" in outcomes
    assert {kind for kind, _ in found.counts} > {*faults._BAD, *faults._HOUSE, *faults._ENDS}
    # killed, and hung
    assert found.restarts["status -9"] and found.restarts["status 70"]
    assert found.describes and found.slowest > 0
    assert {"tasks", "slots", "contexts", "descriptors"} < set(found.after)
