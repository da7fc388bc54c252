"""The record of a dynamics method, with the properties that the package needs. Each method's file ends with its record."""

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
    """The reference definition (q, k, dt, force, n_steps) -> (q, k), which the module `Dynamics` wraps."""
    build: Callable[[DynamicsConfig, int, int], nn.Module] | None = None
    """Function that builds a module with forward(q, k) -> (q, k) from (config, width, number of key heads)."""
    inverse: Run | None = None
    """The inverse of `run`; None if there is no closed form."""
    evaluations: Callable[[int], tuple[int, int]] | None = None
    """Number of evaluations of the network for n steps, per query head and per key head of a token. If it is not given, the
    operations are counted by PyTorch."""
    matrices: int | None = None
    """Size of the network of a method with `build`, in d × d matrices; other methods use that of the force."""
    moves: Callable[[int], list[str]] | None = None
    """The n steps as a list of "force", "kick", "half kick" and "drift", which lets the fast implementations run them.

    Each force is followed by one kick, whole or half, and at most one drift, in either order; see `fused.py`.
    """
    moves_by_own_force: bool = False
    """Whether each vector is moved by its own force. Otherwise a key is moved by the mean force of its group's queries."""
    starts_as_identity: bool = False
    """Whether the map is exactly the identity at initialisation without a gate."""
