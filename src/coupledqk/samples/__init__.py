"""Trained models that come with the package: a standard and a coupled one, for the explorer, analyses and tutorials.

Both have 1.6 million parameters and have read the sources of Python's standard library, with the same seed and the same data.
Each is a run folder with weights in bfloat16; `packing.py` makes it, and its README.md describes it.
"""

from pathlib import Path

from ..errors import CoupledQKError, unknown
from ..runs import Run
from ..training.checkpoints import damage

NAMES = ("standard", "hamiltonian")
FOLDER = Path(__file__).parent


def sample(name: str = "hamiltonian") -> Run:
    """A trained run that comes with the package, "hamiltonian" or "standard": `"".join(sample().generate("def "))`."""
    if name not in NAMES:
        raise unknown("sample model", name, NAMES)
    folder = FOLDER / name
    fault = damage(folder) if folder.is_dir() else "it is missing"
    if fault is not None:
        raise CoupledQKError(f"the sample model {name} in {folder} cannot be used ({fault}): install coupledqk again")
    return Run.open(folder)
