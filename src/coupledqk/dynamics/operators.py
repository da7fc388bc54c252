"""What the implementations share."""

from typing import Any

import torch
from torch import Tensor

from ..errors import CoupledQKError


def dtype_of_sums(q: Tensor, k: Tensor) -> torch.dtype:
    """Float32 at least: a kick of 0.1% is below half a unit in the last place of bfloat16, and would be lost."""
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)


def set_backward(forward: Any, backward: Any, impl: str) -> None:
    """Makes `backward` the gradient of `forward`(q, k, dt, w1, w2, n_steps, method), which saves these inputs alone."""

    def save(ctx: Any, inputs: tuple, output: object) -> None:
        *tensors, ctx.n_steps, ctx.method = inputs
        ctx.save_for_backward(*tensors)

    def differentiate(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple:
        return *backward(grad_q, grad_k, *ctx.saved_tensors, ctx.n_steps, ctx.method), None, None

    def refuse(ctx: Any, *grads: Tensor) -> None:
        raise CoupledQKError(f"impl={impl!r} has no second derivatives: set impl='reference'")

    forward.register_autograd(differentiate, setup_context=save)
    backward.register_autograd(refuse)
