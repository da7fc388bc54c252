"""The language-modelling loss: cross-entropy of the logits x Wᵀ.

`plain_loss` is the definition. `linear_cross_entropy` computes the same without storing all logits: for one block of rows at a
time it computes logits, probabilities and both gradients, which the backward pass scales. Until then they are gradients of the
*sum* of losses, so that in fp16 they do not underflow before the loss scale is applied. Second derivatives and torch.func use
the definition.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import CoupledQKError, unknown
from .torch_internals import again, autocasts, is_fake, is_transformed

IGNORED = -100
"""Targets with this value are ignored."""

BLOCK = 2**25
"""Maximum number of logits in memory at a time."""


def plain_loss(x: Tensor, weight: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Cross-entropy in float32 or higher precision: the mean or the sum over the targets that are not ignored."""
    logits = F.linear(x, weight).flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction=reduction)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Like `plain_loss`, with a fraction of the memory. x is (..., d), weight (vocabulary, d), targets (...)."""
    if reduction not in ("mean", "sum"):
        raise unknown("reduction", reduction, ("mean", "sum"))
    if targets.dtype not in (torch.int32, torch.int64):
        raise CoupledQKError(f"targets of dtype {targets.dtype}: expected token ids as int64 or int32")
    if is_transformed():
        return plain_loss(x, weight, targets.long(), reduction)
    dtype = torch.get_autocast_dtype(x.device.type) if autocasts(x.device) else x.dtype
    needs_gradients = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    total, _, _ = _blockwise(x.flatten(0, -2), weight, targets.flatten(), dtype, needs_gradients)
    return total if reduction == "sum" else total / (targets != IGNORED).sum()


@torch.library.custom_op("coupledqk::linear_cross_entropy", mutates_args=())
def _blockwise(
    x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, needs_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss and its gradients with respect to x and weight (empty if not needed), with products in `dtype`."""
    if targets.is_cpu and not is_fake(targets):  # on an accelerator the check would synchronise
        _check_targets(targets, len(weight))
    sum_dtype = torch.promote_types(dtype, torch.float32)
    total = x.new_zeros((), dtype=sum_dtype)
    x_grad = torch.empty_like(x) if needs_gradients else x.new_empty(0)
    weight_grad = torch.empty_like(weight) if needs_gradients else weight.new_empty(0)
    low_weight = weight.to(dtype)
    n_rows = min(len(x), max(1, BLOCK // len(weight)))
    # all blocks share two buffers, because allocating memory costs as much as a pass over it
    buffer = x.new_empty(n_rows, len(weight), dtype=dtype)
    softmax_buffer = x.new_empty(n_rows, len(weight), dtype=sum_dtype)
    for start in range(0, len(x), n_rows):
        rows = x[start : start + n_rows].to(dtype)
        target = targets[start : start + n_rows, None]
        counts = target != IGNORED
        logits = torch.mm(rows, low_weight.T, out=buffer[: len(rows)]).to(sum_dtype)
        target = target.masked_fill(~counts, 0)  # other negative targets are out of range
        probabilities = torch.softmax(logits, 1, out=softmax_buffer[: len(rows)])
        # two calls of amax, because max with indices takes five times as long as amax
        log_sum = logits.amax(1, keepdim=True) - probabilities.amax(1, keepdim=True).log()
        losses = log_sum - logits.gather(1, target)
        total += losses.masked_fill(~counts, 0).sum()
        if needs_gradients:
            # d loss / d logits = probabilities − one-hot target; ignored rows are masked in x and x_grad, which are smaller
            probabilities.scatter_add_(1, target, torch.full_like(losses, -1))
            logits_grad, counted = probabilities.to(dtype), counts.to(dtype)
            x_grad[start : start + n_rows] = (logits_grad @ low_weight).mul_(counted)
            counted_rows = rows * counted
            if dtype == weight.dtype:
                torch.addmm(weight_grad, logits_grad.T, counted_rows, beta=int(start > 0), out=weight_grad)
            elif start:
                weight_grad += logits_grad.T @ counted_rows
            else:
                weight_grad.copy_(logits_grad.T @ counted_rows)
    return total, x_grad, weight_grad


def _check_targets(targets: Tensor, n: int) -> None:
    wrong = targets[((targets < 0) & (targets != IGNORED)) | (targets >= n)]
    if len(wrong):
        raise CoupledQKError(
            f"target {int(wrong[0])} is outside the vocabulary: expected 0 to {n - 1}, or {IGNORED} for targets to ignore"
        )


@_blockwise.register_fake
def _(x: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, needs_gradients: bool):
    total = x.new_empty((), dtype=torch.promote_types(dtype, torch.float32))
    if not needs_gradients:
        return total, x.new_empty(0), weight.new_empty(0)
    return total, torch.empty_like(x), torch.empty_like(weight)


def _save(ctx, inputs, output) -> None:
    x, weight, targets, ctx.dtype, _ = inputs
    _, x_grad, weight_grad = output
    ctx.save_for_backward(x_grad, weight_grad, x, weight, targets)
    ctx.mark_non_differentiable(x_grad, weight_grad)
    ctx.set_materialize_grads(False)  # no zero gradients of the size of the weights for unused outputs


def _backward(ctx, total_grad: Tensor | None, *_: None):
    if total_grad is None:
        return None, None, None, None, None
    x_grad, weight_grad, x, weight, targets = ctx.saved_tensors
    if torch.is_grad_enabled():  # for second derivatives

        def total(x: Tensor, weight: Tensor) -> Tensor:
            return plain_loss(x.to(ctx.dtype), weight.to(ctx.dtype), targets.long(), "sum")

        return *again(total, (x, weight), total_grad), None, None, None
    return x_grad * total_grad.to(x_grad.dtype), weight_grad * total_grad.to(weight_grad.dtype), None, None, None


_blockwise.register_autograd(_backward, setup_context=_save)
