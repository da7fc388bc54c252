"""Trained models that come with the package: a standard and a coupled one, for the explorer, analyses and tutorials.

Both have 1.6 million parameters and were trained on the source code of Python's standard library, with the same seed and the
same data. Each is a run folder with weights in bfloat16. `packing.py` creates it, and its README.md describes it.
"""

from pathlib import Path

from ..errors import CoupledQKError, unknown
from ..files import read_json, sha256
from ..runs import Run

NAMES = ("standard", "hamiltonian")
FOLDER = Path(__file__).parent
ADVICE = "install coupledqk again"


def sample(name: str = "hamiltonian") -> Run:
    """A trained run that comes with the package, "hamiltonian" or "standard": `"".join(sample().generate("def "))`."""
    if name not in NAMES:
        raise unknown("sample model", name, NAMES)
    folder = FOLDER / name
    fault = _fault(folder) if folder.is_dir() else "it is missing"
    if fault is not None:
        raise CoupledQKError(f"the sample model {name} in {folder} cannot be used ({fault}): {ADVICE}")
    return Run.open(folder)


def _fault(folder: Path) -> str | None:
    """A description of the damage to a sample model; None if it is intact."""
    try:
        checksums = dict(read_json(folder / "checksums.json", ADVICE))
    except (CoupledQKError, TypeError, ValueError):
        return "checksums.json is damaged"
    for name, expected in checksums.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if sha256(folder / name) != expected:
            return f"the checksum of {name} differs"
    return None
