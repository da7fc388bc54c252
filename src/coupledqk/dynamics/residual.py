"""Controls: the force and step size of the coupled dynamics, without the mutual coupling.

    kick               k ← k + dt · f(q)        q does not change: one half of the coupling
    query_residual     q ← q + dt · f(q)        no coupling; with one step of size 1 it is the paper's MLP-Only
    key_residual       k ← k + dt · f(k)        no coupling
    shared_mlp         both residuals, one f    no coupling

They need n evaluations of f for n steps; shared_mlp needs 2n, and kick, whose f(q) is constant, needs one.
"""

from torch import Tensor

from .forces import Force
from .method import Method


def kick(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    return q, k + n_steps * dt * force(q)


def kick_inverse(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    return q, k - n_steps * dt * force(q)


def query_residual(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(n_steps):
        q = q + dt * force(q)
    return q, k


def key_residual(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(n_steps):
        k = k + dt * force(k)
    return q, k


def shared_mlp(q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int) -> tuple[Tensor, Tensor]:
    q, _ = query_residual(q, k, dt, force, n_steps)
    _, k = key_residual(q, k, dt, force, n_steps)
    return q, k


KICK = Method(kick, inverse=kick_inverse, evaluations=lambda n: (1, 0))
QUERY_RESIDUAL = Method(query_residual, evaluations=lambda n: (n, 0), moves_by_own_force=True)
KEY_RESIDUAL = Method(key_residual, evaluations=lambda n: (0, n), moves_by_own_force=True)
SHARED_MLP = Method(shared_mlp, evaluations=lambda n: (n, n), moves_by_own_force=True)
