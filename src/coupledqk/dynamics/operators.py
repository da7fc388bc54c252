"""Functions that several implementations share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import CoupledQKError

SHARE = {"kick": 1.0, "half kick": 0.5}


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


class Weights(NamedTuple):
    """The factors of the moves, in the dtype of the sums."""

    dt: Tensor  # (H_kv, 1, 1)
    w1: Tensor  # (H, d, d): W₁, the same for all heads
    kick: Tensor  # (H_kv, d, d): dt/G · W₂

    def at(self, heads: slice, key_heads: slice) -> "Weights":
        return Weights(self.dt[key_heads], self.w1[heads], self.kick[key_heads])


class Scratch:
    """Scratch memory for the intermediate values of a chunk, which the next chunk reuses after `release`."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.taken = 0

    def like(self, x: Tensor) -> Tensor:
        """An uninitialised, contiguous tensor of x's shape."""
        if self.taken == len(self.blocks) or self.blocks[self.taken].numel() < x.numel():
            self.blocks[self.taken :] = [x.new_empty(x.numel())]
        self.taken += 1
        return self.blocks[self.taken - 1][: x.numel()].view(x.shape)

    def release(self) -> None:
        self.taken = 0


def by_group(x: Tensor, key_heads: int) -> Tensor:
    return x.unflatten(0, (key_heads, -1))  # (H_kv, G, B·T, d)


def sum_groups(x: Tensor, key_heads: int) -> Tensor:
    return x if len(x) == key_heads else by_group(x, key_heads).sum(1)
