"""(A₁ − λ A₂) V on a CPU in blocks of queries, with a hand-written backward pass. The reference is `differential.py`.

Two calls of the flash kernel compute both maps twice. Here they are computed once, and their difference multiplies values of
the head's full width, so that the products are those of one softmax attention. A block skips the keys after its last query,
and its maps stay in the processor's cache. Only q, k and V are saved; the backward pass computes the maps again.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..torch_internals import autocasts, is_transformed

ROWS = 64  # queries in a block
CHUNK = 1 << 18  # size of one map of a block
WORTH_BLOCKS = 128  # the flash kernel is faster with fewer queries, as in decoding


def worth_blocks(q: Tensor, mask: Tensor | None) -> bool:
    """Whether this implementation supports the input and is faster for it."""
    if mask is not None or torch.compiler.is_compiling() or is_transformed():
        return False
    whole = q.dtype in (torch.float32, torch.float64) and not autocasts(q.device)
    return q.is_cpu and whole and q.shape[1] >= WORTH_BLOCKS


def attend_difference(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
    """The output (B, T, H, 2d) from q (B, T, 2H, d), k and v (B, S, 2H_kv, d), and λ, one per head or one for all."""
    key_heads = k.shape[2] // 2
    q = q.unflatten(2, (2, key_heads, -1)).permute(0, 2, 3, 4, 1, 5)
    k = k.unflatten(2, (2, key_heads)).permute(0, 2, 3, 1, 4)
    v = torch.cat(v.chunk(2, dim=2), dim=-1).transpose(1, 2)
    lam = lam.to(q.dtype).expand(key_heads * q.shape[3]).view(key_heads, -1, 1, 1)
    out: Tensor = _AttendDifference.apply(q, k, v, lam, causal)  # pyright: ignore[reportAssignmentType]
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


class _AttendDifference(torch.autograd.Function):
    """q is (B, 2, H_kv, G, T, d), k (B, 2, H_kv, S, d), v (B, H_kv, S, 2d), lam (H_kv, G, 1, 1), out (B, H_kv, G, T, 2d)."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, causal: bool) -> Tensor:
        ctx.save_for_backward(q, k, v, lam)
        ctx.causal = causal
        B, _, heads, group, T, d = q.shape
        out = q.new_empty(B, T, heads, group, 2 * d).permute(0, 2, 3, 1, 4)
        for b, h, t, s in blocks(q, k, causal):
            first, second = (make_map(q[b, half, h, :, t], k[b, half, h, s], causal) for half in (0, 1))
            out[b, h, :, t] = times(first.addcmul_(second, lam[h], value=-1), v[b, h, s])
        return out

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, lam = ctx.saved_tensors
        B, _, heads, group, T, d = q.shape
        grad_q = q.new_empty(B, T, 2, heads, group, d).permute(0, 2, 3, 4, 1, 5)
        shares = torch.stack((torch.ones_like(lam), -lam))  # coefficients of the two maps
        grad_k, grad_v, grad_shares = (x.new_zeros(x.shape) for x in (k, v, shares))
        for b, h, t, s in blocks(q, k, ctx.causal):
            grad = grads[0][b, h, :, t]
            first, second = (make_map(q[b, half, h, :, t], k[b, half, h, s], ctx.causal) for half in (0, 1))
            grad_v[b, h, s] += transposed_times(torch.addcmul(first, second, lam[h], value=-1), grad)
            grad_weights = times(grad, v[b, h, s].mT)
            for half, weights in enumerate((first, second)):
                grad_scores = weights * grad_weights
                rows = grad_scores.sum(-1, keepdim=True)
                grad_scores.addcmul_(weights, rows, value=-1)
                scale = shares[half, h] / math.sqrt(d)
                grad_q[b, half, h, :, t] = times(grad_scores, k[b, half, h, s]) * scale
                grad_k[b, half, h, s] += transposed_times(grad_scores, q[b, half, h, :, t] * scale)
                grad_shares[half, h] += rows.sum(2, keepdim=True)
        return grad_q, grad_k, grad_v, -grad_shares[1], None


def blocks(q: Tensor, k: Tensor, causal: bool) -> Iterator[tuple[int, slice, slice, slice]]:
    """The blocks of a batch: index of the sequence, key heads, queries, and the keys they attend to."""
    B, _, heads, group, T, _ = q.shape
    for t in range(0, T, ROWS):
        seen = min(t + ROWS, T) if causal else k.shape[3]
        step = max(1, CHUNK // (group * ROWS * seen))
        for b in range(B):
            for h in range(0, heads, step):
                yield b, slice(h, h + step), slice(t, t + ROWS), slice(0, seen)


def make_map(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """softmax(q kᵀ / √d). If causal, the last query and the last key belong to the same token."""
    scores = times(q / math.sqrt(q.shape[-1]), k.mT)
    if causal:
        rows = q.shape[2]
        scores[..., -rows:].masked_fill_(torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1)


def times(x: Tensor, y: Tensor) -> Tensor:
    """The product of (H, G, rows, n) and (H, n, m)."""
    return torch.bmm(x.flatten(1, 2), y).unflatten(1, x.shape[1:3])


def transposed_times(x: Tensor, y: Tensor) -> Tensor:
    """The product of (H, G, rows, n) and (H, G, rows, m) summed over groups and rows, (H, n, m)."""
    return torch.bmm(x.flatten(1, 2).mT, y.flatten(1, 2))
