"""What the package needs to know about a dynamics method; each method's file ends with its record."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from ..config import DynamicsConfig
from .forces import Force

Run = Callable[[Tensor, Tensor, Tensor | float, Force, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Method:
    """One dynamics method. It has either `run` or `build`."""

    run: Run | None = None
    """(q, k, dt, force, n_steps) -> (q, k), the readable definition; wrapped in the module `Dynamics`."""
    build: Callable[[DynamicsConfig, int, int], nn.Module] | None = None
    """A module of its own from (config, width, number of key heads), with forward(q, k) -> (q, k)."""
    inverse: Run | None = None
    """Undoes `run`."""
    evaluations: Callable[[int], tuple[int, int]] | None = None
    """Evaluations of the network for n steps: per query head and per key head of a token. Counted if not given."""
    matrices: int | None = None
    """Size of the network of a method with `build`, in d × d matrices; otherwise the force says."""
    moves: Callable[[int], list[str]] | None = None
    """The n steps as a list of "force", "kick", "half kick" and "drift", which lets the fast implementations run them.

    Each force is followed by one kick, whole or half, and at most one drift, in either order; see `fused.py`.
    """
    moves_by_own_force: bool = False
    """Each vector is moved by its own force; otherwise a key is moved by the mean force of the queries of its group."""
    starts_as_identity: bool = False
    """The map is exactly the identity at initialization, without a gate."""
