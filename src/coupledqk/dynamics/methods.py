"""The dynamics methods and forces by name: the records that the entries of `registry.py` refer to."""

from .. import registry
from ..errors import unknown
from .forces import ForceModule
from .method import Method

METHODS: dict[str, Method] = {name: registry.load(entry.record) for name, entry in registry.DYNAMICS.items()}
FORCES: dict[str, type[ForceModule]] = {name: registry.load(force) for name, force in registry.FORCES.items()}


def find_run(name: str) -> Method:
    """The record of a method that is a function of (q, k, dt, force, n_steps)."""
    if name not in METHODS or METHODS[name].run is None:
        raise unknown("method", name, [name for name, method in METHODS.items() if method.run])
    return METHODS[name]


def invertible() -> list[str]:
    return [name for name, method in METHODS.items() if method.inverse]


def moves_of(name: str, n_steps: int) -> list[str]:
    """The steps of a method that the fast implementations can run."""
    moves = METHODS[name].moves
    assert moves is not None
    return moves(n_steps)
