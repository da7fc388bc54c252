"""The language-modelling loss."""

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""Targets with this value do not count."""


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of the logits x Wᵀ, in float32 at least; "mean" is over the targets that count, "sum" over all."""
    logits = F.linear(x, weight).flatten(0, -2)
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction=reduction)
