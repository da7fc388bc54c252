"""Selects the implementation of the dynamics: the reference, or a fast one that gives the same values.

reference    the method files: any method, any force, every transformation of PyTorch
fused        one operator with a hand-written backward: methods that are a list of moves, with the MLP force (fused.py)
few_tokens   the same moves in the fewest calls, without gradients: decoding (few_tokens.py)
triton       one GPU kernel each way: the same, on chip (triton.py)
auto         the fastest one for the device and the size, according to the results in benchmarks/
"""

import torch
from torch import Tensor

from ..errors import CoupledQKError, unknown
from ..rope import Rope
from ..torch_internals import has_forward_hooks, is_transformed
from . import few_tokens
from .forces import Force, MLPForce
from .fused import fused_dynamics
from .methods import METHODS
from .operators import dtype_of_sums

IMPLEMENTATIONS = ("auto", "reference", "fused", "few_tokens", "triton")

# With fewer elements in q, as in decoding, the overhead of the operator and its recomputation outweigh the gain.
WORTH_FUSING = 1 << 18


def choose(
    impl: str, q: Tensor, k: Tensor, dt: Tensor | float, force: Force, method: str, inverse: bool = False
) -> str:
    """`impl` with "auto" resolved, which does not depend on the values of q."""
    obstacle = obstacle_of(force, method, inverse)
    if impl == "auto":
        if obstacle or not q.is_cpu:  # there are no measurements on other devices
            return "reference"
        if q.numel() < WORTH_FUSING:
            return "reference" if few_tokens.obstacle_of(q, k, dt) else "few_tokens"
        # torch.compile fuses the reference itself and does not need to recompute.
        return "reference" if torch.compiler.is_compiling() else "fused"
    if impl not in IMPLEMENTATIONS:
        raise unknown("impl", impl, IMPLEMENTATIONS)
    if impl == "few_tokens":
        obstacle = obstacle or few_tokens.obstacle_of(q, k, dt)
    if impl != "reference" and obstacle:
        raise CoupledQKError(f"impl={impl!r} does not work with {obstacle}: set impl to 'reference' or 'auto'")
    return impl


def obstacle_of(force: Force, method: str, inverse: bool) -> str | None:
    """The reason why no fast implementation can be used; None if one can."""
    if not isinstance(force, MLPForce) or type(force).forward is not MLPForce.forward:
        return f"{getattr(force, '__name__', type(force).__name__)} as force (it needs an MLPForce)"
    if has_forward_hooks(force) or "forward" in vars(force):  # accelerate replaces it to reload offloaded weights
        return "hooks on the force, which it never calls"
    if METHODS[method].moves is None:
        return f"method {method!r} (it needs one of {', '.join(name for name, m in METHODS.items() if m.moves)})"
    if inverse:
        return "inverse=True"
    if not torch.compiler.is_compiling() and is_transformed():
        return "the transformations of torch.func and forward-mode differentiation"
    return None


def integrate_fast(
    impl: str,
    q: Tensor,
    k: Tensor,
    dt: Tensor | float,
    force: Force,
    n_steps: int,
    method: str,
    rope: Rope | None = None,
) -> tuple[Tensor, Tensor]:
    """Evolves q (B, T, H, d) and k (B, T, H_kv, d) with "fused", "few_tokens" (no `rope`) or "triton"."""
    assert isinstance(force, MLPForce)
    if impl == "few_tokens":
        assert rope is None
        dt = dt if isinstance(dt, Tensor) else torch.tensor(dt, dtype=q.dtype, device=q.device)
        return few_tokens.few_tokens_dynamics(q, k, dt, force, n_steps, method)
    dt = torch.as_tensor(dt, dtype=dtype_of_sums(q, k), device=q.device).expand(k.shape[2])
    cos, sin = (None, None) if rope is None else (rope.cos, rope.sin)
    operator = fused_dynamics
    if impl == "triton":
        from .triton import triton_dynamics as operator
    return operator(q, k, dt, force.w1, force.w2, cos, sin, n_steps, method)
