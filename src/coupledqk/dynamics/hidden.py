"""The moves of `fused.py` on the hidden layer of the force, which takes fewer matrix products where inputs are saved.

With u = W₁ q and w = W₁ k₀, only u has to follow the moves. S is the sum of the hidden layers h that have kicked k so far, and
R the sum of the S with which q has drifted:

    force     h ← Σ silu(u)
    kick      S ← S + h                                half kick: S + h/2
    drift     R ← R + S,   u ← u + dt · (w + M S)      M = W₁ · dt/G · W₂

After N drifts

    k = k₀ + dt/G · W₂ S
    q = q₀ + dt · (N k₀ + dt/G · W₂ R)

Three Euler steps take 5 products forward and 3 in the replay, where the moves on q and k take 6 and 5; the gradients take 2 for
each product of the forward pass. In grouped-query attention only one product and its gradients act on queries.
"""

from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from .operators import SHARE, Scratch, Weights, by_group, sum_groups


class Path(NamedTuple):
    """The values that the replay of the moves saves for the gradients."""

    reads: list[tuple[str, Tensor | None]]
    """Each move with the tensor for its gradient: the slope of silu for a force, S for a drift (None before the first kick)."""
    kicks: Tensor  # S after the last move
    drifts: Tensor | None  # R after the last move; None if q has drifted with k₀ alone


def run(
    weights: Weights, moves: list[str], scratch: Scratch, q: Tensor, k: Tensor, new_q: Tensor, new_k: Tensor
) -> None:
    u, w, feedback = _start(weights, moves, scratch, q, k)
    h, total, drifted = k, None, None
    layers, moved = cycle((scratch.like(q), scratch.like(q))), scratch.like(k)  # two in turn: S is in the previous one
    for i, move in enumerate(moves):
        if move == "force":
            h = sum_groups(torch.ops.aten.silu.out(u, out=next(layers)), len(k))
        elif move in SHARE:
            total = _add_kick(total, h, SHARE[move])
        else:
            if total is not None:
                drifted = scratch.like(k).copy_(total) if drifted is None else drifted.add_(total)
            if "force" in moves[i:]:
                _drift(u, w, total, feedback, weights.dt, moved)
    assert total is not None
    torch.mul(k, moves.count("drift") * weights.dt, out=moved)
    if drifted is not None:
        moved.baddbmm_(drifted, (weights.dt * weights.kick).mT)
    torch.add(by_group(q, len(k)), moved.unsqueeze(1), out=by_group(new_q, len(k)))
    torch.baddbmm(k, total, weights.kick.mT, out=new_k)


def replay(weights: Weights, moves: list[str], scratch: Scratch, q: Tensor, k: Tensor) -> Path:
    u, w, feedback = _start(weights, moves, scratch, q, k)
    h, total, drifted = k, None, None
    moved, one = scratch.like(k), torch.ones((), dtype=q.dtype, device=q.device)
    reads: list[tuple[str, Tensor | None]] = []
    for i, move in enumerate(moves):
        if move == "force":
            slope = torch.sigmoid(u, out=scratch.like(q))
            h = torch.mul(u, slope, out=scratch.like(q))
            torch.lerp(h, one, slope, out=slope)  # silu' = h + σ(1 − h)
            h = sum_groups(h, len(k))
            reads.append((move, slope))
        elif move in SHARE:
            total = _add_kick(total, h, SHARE[move])
            reads.append((move, None))
        else:
            reads.append((move, total))
            if total is not None:
                drifted = scratch.like(k).copy_(total) if drifted is None else drifted.add_(total)
            if "force" in moves[i:]:
                _drift(u, w, total, feedback, weights.dt, moved)
    assert total is not None
    return Path(reads, total, drifted)


def undo(
    path: Path,
    weights: Weights,
    sums: Weights,
    scratch: Scratch,
    q: Tensor,
    k: Tensor,
    grad_q: Tensor,
    grad_k: Tensor,
    new_q: Tensor,
    new_k: Tensor,
) -> None:
    """Propagates the gradients from the last move to the first, into new_q and new_k, and adds to the sums."""
    n_keys, n_drifts = len(k), sum(move == "drift" for move, _ in path.reads)
    pull = sum_groups(grad_q, n_keys)
    sums.dt.add_(n_drifts * torch.mul(pull, k, out=scratch.like(k)).sum((1, 2), keepdim=True))
    torch.addcmul(grad_k, pull, n_drifts * weights.dt, out=new_k)
    grad_u, grad_w = _undo_moves(path, weights, sums, scratch, pull, grad_k)
    sums.w1.baddbmm_(grad_u.mT, q)
    torch.baddbmm(grad_q, grad_u, weights.w1, out=new_q)
    if grad_w is not None:  # grad_w is not yet multiplied by dt
        new_k.baddbmm_(grad_w, weights.dt * weights.w1[:n_keys])
        product = torch.bmm(grad_w.mT, k)
        sums.dt.add_((product * weights.w1[:n_keys]).sum((1, 2), keepdim=True))
        by_group(sums.w1, n_keys)[:, 0].addcmul_(product, weights.dt)


def _undo_moves(
    path: Path, weights: Weights, sums: Weights, scratch: Scratch, pull: Tensor, grad_k: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the first u, and of w divided by dt; None if no force comes after a drift."""
    n_keys, feedback = len(grad_k), torch.bmm(weights.w1[: len(grad_k)], weights.kick)
    sums.kick.baddbmm_(grad_k.mT, path.kicks)
    totals = cycle((scratch.like(grad_k), scratch.like(grad_k)))  # two in turn: grad_h is the previous one
    grad_total = torch.bmm(grad_k, weights.kick, out=next(totals))
    grad_drifted = pull if path.drifts is None else _undo_drifts(path.drifts, weights, sums, scratch, pull)
    grad_feedback = torch.zeros_like(feedback)
    grad_h, share = grad_total, 1.0
    grad_u = grad_w = None
    for move, x in reversed(path.reads):
        if move == "force":
            assert x is not None
            grad_u = _add_force(grad_u, x, grad_h, share)
        elif move in SHARE:
            grad_h, share = grad_total, SHARE[move]
        else:
            if x is not None:
                grad_total = torch.add(grad_total, grad_drifted, out=next(totals))
            if grad_u is not None:
                grad_v = sum_groups(grad_u, n_keys)
                grad_w = grad_v if grad_w is None else grad_w.add_(grad_v)
                if x is not None:
                    grad_total.baddbmm_(grad_v, weights.dt * feedback)
                    grad_feedback.baddbmm_(grad_v.mT, x)
    assert grad_u is not None
    sums.dt.add_((grad_feedback * feedback).sum((1, 2), keepdim=True))
    grad_feedback.mul_(weights.dt)
    sums.kick.baddbmm_(weights.w1[:n_keys].mT, grad_feedback)
    by_group(sums.w1, n_keys)[:, 0].baddbmm_(grad_feedback, weights.kick.mT)
    return grad_u, grad_w


def _undo_drifts(drifts: Tensor, weights: Weights, sums: Weights, scratch: Scratch, pull: Tensor) -> Tensor:
    """The gradient of R, which q contains as dt · dt/G · W₂ R."""
    product = torch.bmm(pull.mT, drifts)
    sums.kick.addcmul_(product, weights.dt)
    sums.dt.add_((product * weights.kick).sum((1, 2), keepdim=True))
    return torch.bmm(pull, weights.dt * weights.kick, out=scratch.like(pull))


def _add_force(grad_u: Tensor | None, slope: Tensor, grad_h: Tensor, share: float) -> Tensor:
    """grad_u + share · slope · grad_h, in the memory of the slope."""
    grouped, grad_h = by_group(slope, len(grad_h)), grad_h.unsqueeze(1)
    if grad_u is None:
        grouped.mul_(grad_h if share == 1 else share * grad_h)
    else:
        torch.addcmul(by_group(grad_u, len(grad_h)), grouped, grad_h, value=share, out=grouped)
    return slope


def _start(weights: Weights, moves: list[str], scratch: Scratch, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, w and M. Without a drift before the last force, w is not needed and has no values."""
    w1 = weights.w1.mT
    u, w = torch.bmm(q, w1, out=scratch.like(q)), scratch.like(k)
    if "drift" in moves[: _last_force(moves)]:
        torch.bmm(k, w1[: len(k)], out=w)
    return u, w, torch.bmm(weights.w1[: len(k)], weights.kick)


def _add_kick(total: Tensor | None, h: Tensor, share: float) -> Tensor:
    """S + share · h, in the memory of h."""
    if total is None:
        return h if share == 1 else h.mul_(share)
    return torch.add(total, h, alpha=share, out=h)


def _drift(u: Tensor, w: Tensor, total: Tensor | None, feedback: Tensor, dt: Tensor, out: Tensor) -> None:
    """u ← u + dt · (w + M S); `out` is memory for the sum."""
    v = w if total is None else torch.baddbmm(w, total, feedback.mT, out=out)
    by_group(u, len(w)).addcmul_(v.unsqueeze(1), dt.unsqueeze(1))


def count_products(moves: list[str]) -> tuple[int, int, int]:
    """Products per token of the forward pass: for each query, for each key, and how many of the latter are not replayed."""
    last_force, first_kick = _last_force(moves), min(i for i, move in enumerate(moves) if move in SHARE)
    drifts = [i for i, move in enumerate(moves) if move == "drift"]
    outputs = 1 + any(first_kick < i for i in drifts)
    inner = sum(first_kick < i < last_force for i in drifts)
    return 1, any(i < last_force for i in drifts) + inner + outputs, outputs


def _last_force(moves: list[str]) -> int:
    return max(i for i, move in enumerate(moves) if move == "force")
