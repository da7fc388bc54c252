"""Every reader gets spoiled files: it reads them, or says in one line what is wrong, and never fails otherwise."""

from pathlib import Path

import pytest
from fuzzing import fuzz
from readers import READERS
from samples import Samples, make_samples


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.mktemp("samples")
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        return make_samples(folder)


@pytest.mark.parametrize("name", READERS)
def test_spoiled_files_are_read_or_refused_in_one_line(name: str, samples: Samples) -> None:
    tally = fuzz(name, samples, inputs=150)
    assert tally.failures == [], tally.failures[0]
    assert tally.tried == 150
