"""Which implementation moves q and k: the readable methods, or a fast one that gives the same values.

reference   the method files: any method, any force, every transformation of PyTorch
fused       one operator with a hand-written backward: the integrators with the MLP force (fused.py)
triton      one GPU kernel each way: the same, on chip (triton.py)
auto        the fastest that results in benchmarks/ have timed on such a device at such a size
"""

import torch
from torch import Tensor

from ..errors import CoupledQKError, unknown
from .forces import Force, MLPForce
from .fused import SCHEDULES, fused_dynamics
from .operators import dtype_of_sums

IMPLEMENTATIONS = ("auto", "reference", "fused", "triton")

# With fewer numbers in q, in decoding for one, the fixed cost of the operator and its recomputation outweigh the gain.
WORTH_FUSING = 1 << 18


def choose(impl: str, q: Tensor, force: Force, method: str, inverse: bool) -> str:
    """`impl` with "auto" resolved; never by the values of q."""
    if impl not in IMPLEMENTATIONS:
        raise unknown("impl", impl, IMPLEMENTATIONS)
    obstacle = obstacle_of(force, method, inverse)
    if impl == "auto":
        # The compiler fuses the readable methods by itself, and need not recompute.
        wanted = q.device.type == "cpu" and q.numel() >= WORTH_FUSING and not torch.compiler.is_compiling()
        return "fused" if wanted and not obstacle else "reference"
    if impl != "reference" and obstacle:
        raise CoupledQKError(f"impl={impl!r} does not work with {obstacle}: set impl to 'reference' or 'auto'")
    return impl


def obstacle_of(force: Force, method: str, inverse: bool) -> str | None:
    """What keeps the fast implementations from being used."""
    if not isinstance(force, MLPForce) or type(force).forward is not MLPForce.forward:
        return f"{getattr(force, '__name__', type(force).__name__)} as force (it needs an MLPForce)"
    if force._forward_hooks or force._forward_pre_hooks:
        return "hooks on the force, which it never calls"
    if method not in SCHEDULES:
        return f"method {method!r} (it needs one of {', '.join(SCHEDULES)})"
    if inverse:
        return "inverse=True"
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return "the transformations of torch.func"
    return None


def integrate_fast(
    impl: str, q: Tensor, k: Tensor, dt: Tensor | float, force: Force, n_steps: int, method: str
) -> tuple[Tensor, Tensor]:
    """q (B, T, H, d) and k (B, T, H_kv, d), by "fused" or "triton"."""
    assert isinstance(force, MLPForce)
    dt = torch.as_tensor(dt, dtype=dtype_of_sums(q, k), device=q.device).expand(k.shape[2])
    if impl == "fused":
        return fused_dynamics(q, k, dt, force.w1, force.w2, n_steps, method)
    from .triton import triton_dynamics

    return triton_dynamics(q, k, dt, force.w1, force.w2, n_steps, method)
