"""Semi-implicit (symplectic) Euler, which preserves volume like leapfrog at the cost of Euler.

    k ← k + dt · f(q)        kick
    q ← q + dt · k           drift, with the new k

The method is of first order and needs n evaluations of f for n steps. Each line is a shear, so volume is preserved for any
f, and the inverse is exact.
"""

from torch import Tensor

from .forces import Force
from .method import Method


def semi_implicit(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(n_steps):
        k = k + dt * force(q)
        q = q + dt * k
    return q, k


def semi_implicit_inverse(
    q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int
) -> tuple[Tensor, Tensor]:
    for _ in range(n_steps):
        q = q - dt * k
        k = k - dt * force(q)
    return q, k


SEMI_IMPLICIT = Method(
    semi_implicit,
    inverse=semi_implicit_inverse,
    evaluations=lambda n: (n, 0),
    moves=lambda n: n * ["force", "kick", "drift"],
)
