"""Forward Euler, the paper's simplest coupled dynamics.

    q ← q + dt · k
    k ← k + dt · f(q)        both from the old q and k

The method is of first order and needs n evaluations of f for n steps. It does not preserve volume and has no closed-form
inverse.
"""

from torch import Tensor

from .forces import Force
from .method import Method


def euler(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(n_steps):
        q, k = q + dt * k, k + dt * force(q)
    return q, k


EULER = Method(euler, evaluations=lambda n: (n, 0), moves=lambda n: n * ["force", "drift", "kick"])
