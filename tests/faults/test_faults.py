"""The short form of the harness: kills, flips, failing disks and power cuts; `make soak` tries more of each."""

import pytest
from parts import PARTS, SHORT
from samples import Samples


@pytest.mark.parametrize("name", ["kills", "flips", "disks", "power"])
def test_faults_are_reported_repaired_or_without_effect(name: str, samples: Samples) -> None:
    tally = PARTS[name].run(samples, SHORT)
    assert tally.failures == [], tally.failures[0]
    assert tally.failed == 0
    assert tally.tried >= 12
