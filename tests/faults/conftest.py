"""The files that are damaged: made once for all tests of a module."""

from pathlib import Path

import pytest
from samples import make_samples


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.mktemp("samples")
        patch.setenv("COUPLEDQK_CACHE", str(folder / "cache"))
        yield make_samples(folder)
