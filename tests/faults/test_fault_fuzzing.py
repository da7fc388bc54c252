"""Every reader gets spoiled files: it reads them, or says in one line what is wrong, and never fails otherwise."""

import pytest
from parts import PARTS, SHORT
from readers import READERS
from samples import Samples


@pytest.mark.parametrize("name", READERS)
def test_spoiled_files_are_read_or_refused_in_one_line(name: str, samples: Samples) -> None:
    tally = PARTS[f"read {name}"].run(samples, SHORT)
    assert tally.failures == [], tally.failures[0]
    assert tally.tried == SHORT.inputs
