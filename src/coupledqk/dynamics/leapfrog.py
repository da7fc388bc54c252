"""Leapfrog (Störmer–Verlet), the paper's Hamiltonian dynamics.

    k ← k + dt/2 · f(q)      kick
    q ← q + dt · k           drift
    k ← k + dt/2 · f(q)      kick

The method is of second order and needs n + 1 evaluations of f for n steps: the last kick of a step and the first kick of the
next one share f(q). Each line is a shear, so volume is preserved for any f; the map is symplectic only if f is a gradient. The
map is reversible: integrating with −dt inverts it.
"""

from torch import Tensor

from .forces import Force
from .method import Method


def leapfrog(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    k = k + dt / 2 * force(q)
    for step in range(1, n_steps + 1):
        q = q + dt * k
        k = k + (dt if step < n_steps else dt / 2) * force(q)
    return q, k


def leapfrog_inverse(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    return leapfrog(q, k, -dt, force, n_steps)


LEAPFROG = Method(
    leapfrog,
    inverse=leapfrog_inverse,
    evaluations=lambda n: (n + 1, 0),
    moves=lambda n: ["force", "half kick", *(n - 1) * ["drift", "force", "kick"], "drift", "force", "half kick"],
)
