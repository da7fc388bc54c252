"""`evolve`: one call for every method, any layout, any grouping of heads and any precision."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import CoupledQKError, unknown
from .euler import euler
from .forces import Force
from .fused import SCHEDULES, SHARE
from .implementations import WORTH_FUSING, choose, integrate_fast, obstacle_of
from .leapfrog import leapfrog, leapfrog_inverse
from .operators import dtype_of_sums
from .residual import key_residual, kick, kick_inverse, query_residual, shared_mlp
from .semi_implicit import semi_implicit, semi_implicit_inverse

METHODS = {
    "euler": euler,
    "leapfrog": leapfrog,
    "semi_implicit": semi_implicit,
    "kick": kick,
    "query_residual": query_residual,
    "key_residual": key_residual,
    "shared_mlp": shared_mlp,
}
INVERSES = {"leapfrog": leapfrog_inverse, "semi_implicit": semi_implicit_inverse, "kick": kick_inverse}

# Here every vector is moved by its own force; elsewhere a key is moved by the forces of all queries of its group.
MOVES_BY_OWN_FORCE = {"query_residual", "key_residual", "shared_mlp"}

HEAD_AXIS = {"BTHD": 2, "BHTD": 1}
Layout = Literal["BTHD", "BHTD"]


def evolve(
    q: Tensor,
    k: Tensor,
    dt: Tensor | float,
    force: Force,
    n_steps: int = 3,
    method: str = "leapfrog",
    layout: Layout = "BTHD",
    inverse: bool = False,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Moves queries and keys together for `n_steps` steps of size `dt`; each token and head by itself.

    q is (B, T, H, d) and k (B, T, H_kv, d), or with layout="BHTD" (B, H, T, d) and (B, H_kv, T, d). With fewer key heads
    than query heads (grouped-query attention) each query drifts with its group's key, and the key is kicked by the mean
    of f over its group. `dt` is a number, or a tensor with one step size per key head; `force` maps (..., d) to (..., d).
    `inverse=True` runs a method that has an inverse backwards. `impl` is "reference", "fused", "triton" or "auto"
    (`implementations.py`): the same values, at different speeds.

    q and k leave in the dtype they came in; the sums are taken in float32 at least.
    """
    _check(q, k, dt, n_steps, method, layout, inverse)
    return integrate(q, k, dt, force, n_steps, method, layout, inverse, impl)


def integrate(
    q: Tensor,
    k: Tensor,
    dt: Tensor | float,
    force: Force,
    n_steps: int,
    method: str,
    layout: Layout = "BTHD",
    inverse: bool = False,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`evolve` without its checks: dt may be 0 (a closed gate)."""
    axis = HEAD_AXIS[layout]
    if impl == "auto" and axis == 2 and _is_decoding(q, k, dt) and not obstacle_of(force, method, inverse):
        return _integrate_in_few_calls(q, k, dt, force, n_steps, method)
    impl = choose(impl, q, force, method, inverse)
    if impl == "reference":
        return _integrate_readably(q, k, dt, force, n_steps, method, axis, inverse)
    q, k = integrate_fast(impl, q.movedim(axis, 2), k.movedim(axis, 2), dt, force, n_steps, method)
    return q.movedim(2, axis), k.movedim(2, axis)


def _is_decoding(q: Tensor, k: Tensor, dt: Tensor | float) -> bool:
    """A few tokens without gradients, whose sums need no other precision."""
    if torch.is_grad_enabled() or q.numel() >= WORTH_FUSING or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled(q.device.type):  # which would round the sums of a product
        return False
    return isinstance(dt, Tensor) and q.dtype == k.dtype == dt.dtype == torch.float32


def _integrate_in_few_calls(
    q: Tensor, k: Tensor, dt: Any, force: Any, n_steps: int, method: str
) -> tuple[Tensor, Tensor]:
    """The moves of `fused.py`, for so few tokens that only the number of calls and their way to the product matter."""
    B, T, n_keys, d = k.shape
    group_size = q.shape[2] // n_keys
    new_q, new_k = q.reshape(-1, d), k.reshape(-1, d)
    dt, w1, w2 = dt.expand(B * T, n_keys).reshape(-1, 1), force.w1.T, force.w2.T
    h = new_q
    for move in SCHEDULES[method](n_steps):
        if move == "force":
            h = F.silu(torch.mm(new_q, w1), inplace=True)
            if group_size > 1:
                h = h.view(-1, group_size, d).mean(1)
        elif move in SHARE:
            new_k = torch.addmm(new_k, h.mul_(dt), w2, alpha=SHARE[move])
        elif group_size == 1:
            new_q = torch.addcmul(new_q, new_k, dt)
        else:
            new_q = (new_q.view(-1, group_size, d) + (new_k * dt).unsqueeze(1)).view(-1, d)
    return new_q.view(q.shape), new_k.view(k.shape)


def _integrate_readably(
    q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int, method: str, axis: int, inverse: bool
) -> tuple[Tensor, Tensor]:
    grouped = q.shape[axis] != k.shape[axis]
    q_dtype, k_dtype, sum_dtype = q.dtype, k.dtype, dtype_of_sums(q, k)

    def mean_force(x: Tensor) -> Tensor:
        f = force(x.to(q_dtype)).to(sum_dtype)
        return f.mean(axis + 1, keepdim=True) if grouped and method not in MOVES_BY_OWN_FORCE else f

    if grouped:
        q, k = group_heads(q, k, axis)
    if isinstance(dt, Tensor) and dt.ndim:
        dt = dt.to(sum_dtype).view(-1, *[1] * (q.ndim - axis - 1))  # one per key head, against all axes behind it
    run = INVERSES[method] if inverse else METHODS[method]
    q, k = run(q.to(sum_dtype), k.to(sum_dtype), dt, mean_force, n_steps)
    if grouped:
        q, k = ungroup_heads(q, k, axis)
    return q.to(q_dtype), k.to(k_dtype)


def group_heads(q: Tensor, k: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Puts the queries of a group on an axis of their own behind the key heads: (…, H_kv, G, …) and (…, H_kv, 1, …)."""
    return q.unflatten(axis, (k.shape[axis], -1)), k.unsqueeze(axis + 1)


def ungroup_heads(q: Tensor, k: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return q.flatten(axis, axis + 1), k.squeeze(axis + 1)


def _check(q: Tensor, k: Tensor, dt: Tensor | float, n_steps: int, method: str, layout: str, inverse: bool) -> None:
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if inverse and method not in INVERSES:
        raise CoupledQKError(f"method {method!r} has no inverse: choose from {', '.join(INVERSES)}")
    if layout not in HEAD_AXIS:
        raise unknown("layout", layout, HEAD_AXIS)
    if n_steps < 1:
        raise CoupledQKError(f"n_steps={n_steps}: expected at least 1")
    axis = HEAD_AXIS[layout]
    if q.ndim != 4 or k.ndim != 4 or q.numel() == 0 or k.numel() == 0:
        raise CoupledQKError(
            f"q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)}: expected four non-empty axes each, in the order "
            f"{layout}"
        )
    others = [i for i in range(4) if i != axis]
    if any(q.shape[i] != k.shape[i] for i in others) or q.shape[axis] % k.shape[axis]:
        raise CoupledQKError(
            f"q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)} in layout {layout}: expected equal B, T and d, and a "
            "number of query heads that the number of key heads divides"
        )
    if isinstance(dt, Tensor) and dt.ndim and dt.shape != (k.shape[axis],):
        raise CoupledQKError(
            f"dt of shape {tuple(dt.shape)}: expected a number or one step size for each of the {k.shape[axis]} key heads"
        )
    # a tensor on an accelerator is not read: that would wait for the device
    readable = not torch.compiler.is_compiling() and (not isinstance(dt, Tensor) or dt.device.type == "cpu")
    if readable and not bool((torch.as_tensor(dt) > 0).all()):
        raise CoupledQKError(f"dt={dt}: expected greater than 0; to run backwards set inverse=True")
