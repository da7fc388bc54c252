"""The integrators with the MLP force as one operator with a hand-written backward pass. The method files are the reference.

A method is a list of moves on q, on k, and on h, the hidden layer of the force summed over the G queries of a group:

    force     h ← Σ silu(W₁ q)
    kick      k ← k + dt/G · W₂ h        half kick: half of that
    drift     q ← q + dt · k

If every move can be undone (leapfrog, semi-implicit), only the outputs are saved, which attention saves anyway: the backward
pass undoes the moves one by one and so reconstructs the input of each. Otherwise (Euler; half precision, whose outputs are
rounded; many steps, over which rounding errors grow) the inputs are saved, the moves are run on the hidden layer of the force
(hidden.py), and the backward pass replays them.
RoPE is part of the operator, because attention saves the rotated q and k: the backward pass rotates them back.

For speed, q and k are laid out head by head. dt can then be folded into a W₂ for each head, so that a kick is one matrix
product that adds to k, and the products for the gradient of W₂ also give that of dt. W₂ acts after the sum over a group.
Heads and tokens are processed in chunks that are small enough for the steps to stay in the processor's cache, which also
limits memory. All chunks use the same scratch memory, because allocating new memory would cost more than most of the
computation.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..rope import rotate, rotate_back
from . import hidden
from .methods import moves_of
from .operators import SHARE, Scratch, Weights, by_group, dtype_of_sums, set_backward, sum_groups

CHUNK = 1 << 18  # elements of q in a chunk
MOST_STEPS_REBUILT = 8


@torch.library.custom_op("coupledqk::dynamics", mutates_args=())
def fused_dynamics(
    q: Tensor,
    k: Tensor,
    dt: Tensor,
    w1: Tensor,
    w2: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    n_steps: int,
    method: str,
) -> tuple[Tensor, Tensor]:
    """q is (B, T, H, d), k (B, T, H_kv, d), dt (H_kv,), all with any strides; cos and sin are those of a `Rope`, if any."""
    with torch.autocast(q.device.type, enabled=False):
        weights, moves = fold(q, k, dt, w1, w2), moves_of(method, n_steps)
        # laid out token by token: attention uses the layout of q for its output, and the output projection reads tokens
        new = q.new_empty(q.shape, dtype=weights.dt.dtype), empty_by_head(k, weights.dt.dtype)
        follow = run if rebuilds(q, k, n_steps, method) else hidden.run
        scratch = Scratch()
        for heads, tensors in chunks(q, k, *new):
            scratch.release()
            follow(weights.at(*heads), moves, scratch, *tensors)
        if cos is not None and sin is not None:
            new = rotate(new[0], cos, sin), rotate(new[1], cos, sin)
        return new[0].to(q.dtype), new[1].to(k.dtype)


def run(
    weights: Weights, moves: list[str], scratch: Scratch, q: Tensor, k: Tensor, new_q: Tensor, new_k: Tensor
) -> None:
    h, a, between = k, scratch.like(q), scratch.like(q)
    w1, kick = weights.w1.mT, weights.kick.mT
    for i, move in enumerate(moves):
        if move == "force":
            h = sum_groups(F.silu(torch.bmm(q, w1, out=a), inplace=True), len(k))
        elif move == "drift":
            q = drift(q, k, weights.dt, out=between if "drift" in moves[i + 1 :] else new_q)
        else:
            k = torch.baddbmm(k, h, kick, alpha=SHARE[move], out=new_k)


@torch.library.custom_op("coupledqk::dynamics_backward", mutates_args=())
def fused_dynamics_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    dt: Tensor,
    w1: Tensor,
    w2: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    n_steps: int,
    method: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q and k are the tensors saved by the forward pass: its outputs if the moves can be undone, otherwise its inputs."""
    with torch.autocast(q.device.type, enabled=False):
        weights, moves = fold(q, k, dt, w1, w2), moves_of(method, n_steps)
        rebuilding = rebuilds(q, k, n_steps, method)
        if cos is not None and sin is not None:
            grad_q, grad_k = rotate(grad_q, cos, -sin), rotate(grad_k, cos, -sin)
            if rebuilding:
                q, k = rotate_back(q, cos, sin), rotate_back(k, cos, sin)
        sums = Weights(*(torch.zeros(w.shape, dtype=w.dtype, device=w.device) for w in weights))
        empty = empty_by_head if rebuilding else empty_by_token
        new = empty(q, weights.dt.dtype), empty(k, weights.dt.dtype)
        scratch = Scratch()
        for heads, (q_part, k_part, *grads) in chunks(q, k, grad_q, grad_k, *new):
            scratch.release()
            part, part_sums = weights.at(*heads), sums.at(*heads)
            if rebuilding:
                undo(rebuild(part, moves, scratch, q_part, k_part), part, part_sums, scratch, *grads)
            else:
                path = hidden.replay(part, moves, scratch, q_part, k_part)
                hidden.undo(path, part, part_sums, scratch, q_part, k_part, *grads)
        per_head = sums.kick * (k.shape[2] / q.shape[2])
        grad_dt = sums.dt.flatten() + (per_head * w2).sum((1, 2))
        grad_w1, grad_w2 = sums.w1.sum(0), (per_head * weights.dt).sum(0)
        return new[0].to(q.dtype), new[1].to(k.dtype), grad_dt.to(dt.dtype), grad_w1.to(w1.dtype), grad_w2.to(w2.dtype)


class Read(NamedTuple):
    """A move and its input: q for a force, k for a drift, h for a kick."""

    move: str
    x: Tensor
    slope: Tensor  # derivative of silu at W₁ q; used only by a force


def rebuilds(q: Tensor, k: Tensor, n_steps: int, method: str) -> bool:
    """Whether the backward pass starts from the outputs, which requires outputs in the precision of the sums and moves that
    can be undone.

    Outputs in half precision are rounded, and inputs reconstructed from them would be less accurate than the reference. The
    same holds for many steps with a strong force: the error was up to 8 units of rounding after 8 steps, 30 after 16.
    """
    return q.dtype == k.dtype == dtype_of_sums(q, k) and rebuilds_steps(moves_of(method, n_steps), n_steps)


def rebuilds_steps(moves: Sequence[str], n_steps: int) -> bool:
    """The part of `rebuilds` that depends on the steps: a kick can be undone if q has not drifted since its force."""
    if n_steps > MOST_STEPS_REBUILT:
        return False
    last = ""
    for move in moves:
        if move in SHARE and last == "drift":
            return False
        last = last if move in SHARE else move
    return True


def rebuild(weights: Weights, moves: list[str], scratch: Scratch, q: Tensor, k: Tensor) -> Iterator[Read]:
    """Undoes the moves one by one, from their result, and yields the input of each.

    Tensors are released as soon as they are no longer needed, so the scratch memory does not grow with the number of steps.
    """
    w1, kick = weights.w1.mT, weights.kick.mT
    a, slope = scratch.like(q), scratch.like(q)
    earlier_q, earlier_k = scratch.like(q), scratch.like(k)
    one = torch.ones((), dtype=q.dtype, device=q.device)
    for i, move in reversed([*enumerate(moves)]):
        if move == "force":
            yield Read(move, q, slope)
        elif move == "drift":
            yield Read(move, k, slope)
            q = drift(q, k, -weights.dt, out=earlier_q)
        else:
            torch.bmm(q, w1, out=a)
            torch.sigmoid(a, out=slope)
            torch.lerp(a.mul_(slope), one, slope, out=slope)  # silu' = h + σ(1 − h)
            h = sum_groups(a, len(k))
            yield Read(move, h, slope)
            if "drift" in moves[:i]:
                k = torch.baddbmm(k, h, kick, alpha=-SHARE[move], out=earlier_k)


def undo(
    reads: Iterable[Read],
    weights: Weights,
    sums: Weights,
    scratch: Scratch,
    grad_q: Tensor,
    grad_k: Tensor,
    new_q: Tensor,
    new_k: Tensor,
) -> None:
    """Propagates the gradients from the last move to the first, into new_q and new_k, and adds to the sums."""
    grad_h, product = scratch.like(grad_k), scratch.like(grad_k)
    for move, x, slope in reads:
        if move == "force":
            by_group(slope, len(grad_k)).mul_(grad_h.unsqueeze(1))
            sums.w1.baddbmm_(slope.mT, x)
            grad_q = torch.baddbmm(grad_q, slope, weights.w1, out=new_q)
        elif move == "drift":
            pull = sum_groups(grad_q, len(grad_k))
            sums.dt.add_(torch.mul(pull, x, out=product).sum((1, 2), keepdim=True))
            grad_k = torch.addcmul(grad_k, pull, weights.dt, out=new_k)
        else:
            sums.kick.baddbmm_(grad_k.mT, x, alpha=SHARE[move])
            torch.baddbmm(grad_h, grad_k, weights.kick, beta=0, alpha=SHARE[move], out=grad_h)


def fold(q: Tensor, k: Tensor, dt: Tensor, w1: Tensor, w2: Tensor) -> Weights:
    dtype = dtype_of_sums(q, k)
    heads, key_heads = q.shape[2], k.shape[2]
    dt = dt.to(dtype).view(-1, 1, 1)
    return Weights(dt, w1.to(dtype).expand(heads, -1, -1), dt * (key_heads / heads) * w2.to(dtype))


def drift(q: Tensor, k: Tensor, dt: Tensor, out: Tensor) -> Tensor:
    torch.addcmul(by_group(q, len(k)), k.unsqueeze(1), dt.unsqueeze(1), out=by_group(out, len(k)))
    return out


def by_head(x: Tensor) -> Tensor:
    return x.permute(2, 0, 1, 3).flatten(1, 2)  # (H, B·T, d)


def empty_by_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor of the shape (B, T, H, d) of x, laid out head by head."""
    B, T, H, d = x.shape
    return x.new_empty(H, B, T, d, dtype=dtype).permute(1, 2, 0, 3)


def empty_by_token(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor of the shape (B, T, H, d) of x, laid out token by token, like the output of a projection."""
    return x.new_empty(x.shape, dtype=dtype)


def chunks(q: Tensor, k: Tensor, *pairs: Tensor) -> Iterator[tuple[tuple[slice, slice], list[Tensor]]]:
    """Chunks of q, k and further such pairs, by head and in the dtype of the sums, with their query and key heads.

    A chunk is some key heads and all tokens, or one head and some tokens, which is contiguous in this layout.
    """
    tensors = [by_head(x) for x in (q, k, *pairs)]
    key_heads, tokens, d = tensors[1].shape
    group_size = len(tensors[0]) // key_heads
    size = CHUNK // (group_size * d) if q.is_cpu else key_heads * tokens
    head_step, token_step = max(1, size // tokens), max(1, size)
    for h in range(0, key_heads, head_step):
        heads = slice(h * group_size, (h + head_step) * group_size), slice(h, h + head_step)
        for t in range(0, tokens, token_step):
            parts = (x[where, t : t + token_step] for x, where in zip(tensors, cycle(heads), strict=False))
            yield heads, [x.to(dtype_of_sums(q, k)) for x in parts]


@fused_dynamics.register_fake
def _(q, k, dt, w1, w2, cos, sin, n_steps, method):
    if cos is not None:
        return q.new_empty(q.shape), k.new_empty(k.shape)
    return q.new_empty(q.shape), empty_by_head(k, k.dtype)


@fused_dynamics_backward.register_fake
def _(grad_q, grad_k, q, k, dt, w1, w2, cos, sin, n_steps, method):
    grads = (x.new_empty(x.shape) for x in (dt, w1, w2))
    empty = empty_by_head if rebuilds(q, k, n_steps, method) else empty_by_token
    return empty(q, q.dtype), empty(k, k.dtype), *grads


set_backward(fused_dynamics, fused_dynamics_backward, "fused", rebuilds)
