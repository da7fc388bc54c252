"""Every reader reads a corrupted file, or refuses it with a one-line error."""

import pytest
from parts import PARTS, SHORT
from readers import READERS
from samples import Samples


@pytest.mark.parametrize("name", READERS)
def test_corrupted_files_are_read_or_refused_in_one_line(name: str, samples: Samples) -> None:
    tally = PARTS[f"read {name}"].run(samples, SHORT)
    assert tally.failures == [], tally.failures[0]
    assert tally.tried == SHORT.inputs
