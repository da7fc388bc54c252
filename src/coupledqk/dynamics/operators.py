"""Functions that several implementations share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import CoupledQKError


def dtype_of_sums(q: Tensor, k: Tensor) -> torch.dtype:
    """The dtype of sums, at least float32: a kick of 0.1% is below half a unit in the last place of bfloat16."""
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)


Rebuilds = Callable[[Tensor, Tensor, int, str], bool]
"""Whether a backward pass on (q, k, n_steps, method) starts from the outputs of the forward pass instead of its inputs."""


def set_backward(forward: Any, backward: Any, impl: str, rebuilds: Rebuilds = lambda *_: False) -> None:
    """Makes `backward` the gradient of `forward`(q, k, dt, w1, w2, *angles, n_steps, method).

    The outputs are saved if the backward pass `rebuilds` q and k from them, otherwise the inputs.
    """

    def save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        q, k, *others, ctx.n_steps, ctx.method = inputs
        kept = output if rebuilds(q, k, ctx.n_steps, ctx.method) else (q, k)
        ctx.n_angles = len(others) - 3
        ctx.save_for_backward(*kept, *others)

    def differentiate(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple:
        grads = backward(grad_q, grad_k, *ctx.saved_tensors, ctx.n_steps, ctx.method)
        return *grads, *[None] * (ctx.n_angles + 2)

    def refuse(ctx: Any, *grads: Tensor) -> None:
        raise CoupledQKError(f"impl={impl!r} has no second derivatives: set impl='reference'")

    forward.register_autograd(differentiate, setup_context=save)
    backward.register_autograd(refuse)
