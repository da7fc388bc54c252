"""`evolve`: one call for every method, any layout, any grouping of heads and any precision."""

from typing import Literal

import torch
from torch import Tensor

from ..config import LARGEST_STEP_SIZE
from ..errors import CoupledQKError, unknown
from ..torch_internals import is_transformed
from .forces import Force
from .grouping import group_heads, ungroup_heads
from .implementations import choose, integrate_fast
from .methods import METHODS, find_run, invertible
from .operators import dtype_of_sums

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
    """Integrates the coupled dynamics of queries and keys for `n_steps` steps of size `dt`, for each token and head separately.

    q is (B, T, H, d) and k (B, T, H_kv, d), or with layout="BHTD" (B, H, T, d) and (B, H_kv, T, d). With fewer key heads
    than query heads (grouped-query attention) each query drifts with its group's key, and the key is kicked by the mean
    of f over its group. `dt` is a number, or a tensor with one step size per key head; `force` maps (..., d) to (..., d).
    `inverse=True` runs a method that has an inverse backwards. `impl` is "reference", "fused", "few_tokens", "triton" or
    "auto" (`implementations.py`): the same values, at different speeds.

    q and k are returned in their own dtypes; sums are computed in float32 or higher precision.
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
    impl = choose(impl, q, k, dt, force, method, inverse)
    if impl == "reference":
        return _integrate_readably(q, k, dt, force, n_steps, method, axis, inverse)
    if axis == 2:
        return integrate_fast(impl, q, k, dt, force, n_steps, method)
    q, k = integrate_fast(impl, q.movedim(axis, 2), k.movedim(axis, 2), dt, force, n_steps, method)
    return q.movedim(2, axis), k.movedim(2, axis)


def _integrate_readably(
    q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int, method: str, axis: int, inverse: bool
) -> tuple[Tensor, Tensor]:
    grouped = q.shape[axis] != k.shape[axis]
    q_dtype, k_dtype, sum_dtype = q.dtype, k.dtype, dtype_of_sums(q, k)
    record = METHODS[method]

    def mean_force(x: Tensor) -> Tensor:
        f = force(x.to(q_dtype))
        if not isinstance(f, Tensor) or f.shape != x.shape:
            shape = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
            raise CoupledQKError(f"the force returned {shape} for {tuple(x.shape)}: expected the shape of its argument")
        f = f.to(sum_dtype)
        return f.mean(axis + 1, keepdim=True) if grouped and not record.moves_by_own_force else f

    if grouped:
        q, k = group_heads(q, k, axis)
    if isinstance(dt, Tensor) and dt.ndim:
        dt = dt.to(sum_dtype).view(
            -1, *[1] * (q.ndim - axis - 1)
        )  # one per key head, broadcast over the following axes
    run = record.inverse if inverse else record.run
    assert run is not None
    q, k = run(q.to(sum_dtype), k.to(sum_dtype), dt, mean_force, n_steps)
    if grouped:
        q, k = ungroup_heads(q, k, axis)
    return q.to(q_dtype), k.to(k_dtype)


def _check(q: Tensor, k: Tensor, dt: Tensor | float, n_steps: int, method: str, layout: str, inverse: bool) -> None:
    record = find_run(method)
    if inverse and record.inverse is None:
        raise CoupledQKError(f"method {method!r} has no inverse: choose from {', '.join(invertible())}")
    if layout not in HEAD_AXIS:
        raise unknown("layout", layout, HEAD_AXIS)
    if not hasattr(n_steps, "__index__") or n_steps < 1:
        raise CoupledQKError(f"n_steps={n_steps!r}: expected at least 1, as a whole number")
    axis = HEAD_AXIS[layout]
    for name, x in (("q", q), ("k", k)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise CoupledQKError(f"{name} is {kind}: expected a tensor of floating-point numbers")
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
    if not hasattr(dt, "__float__") or (not isinstance(dt, Tensor) and getattr(dt, "ndim", 0)):
        raise CoupledQKError(f"dt={dt!r}: expected a number, or a tensor with one step size per key head")
    if isinstance(dt, Tensor) and dt.ndim and dt.shape != (k.shape[axis],):
        raise CoupledQKError(
            f"dt of shape {tuple(dt.shape)}: expected a number or one step size for each of the {k.shape[axis]} key heads"
        )
    # reading a tensor on an accelerator would synchronise with the device; inside vmap a tensor has no values to read
    readable = not isinstance(dt, Tensor) or (dt.device.type == "cpu" and not is_transformed())
    readable = readable and not torch.compiler.is_compiling()
    if readable and not bool((torch.as_tensor(dt) > 0).all()):
        raise CoupledQKError(f"dt={dt}: expected greater than 0; to run backwards set inverse=True")
    if readable and not bool((torch.as_tensor(dt) <= LARGEST_STEP_SIZE).all()):
        raise CoupledQKError(f"dt={dt}: expected at most {LARGEST_STEP_SIZE:g}")
