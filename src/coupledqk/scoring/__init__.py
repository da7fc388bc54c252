"""Scoring: evolved q, k and v in, output out. Each has a fast path and a plain one that also returns the weights."""

from torch import nn

from ..config import ScoringConfig
from .differential import Differential
from .softmax import Softmax, attend, attention_weights

__all__ = ["Differential", "Softmax", "attend", "attention_weights", "build_scoring"]


def build_scoring(config: ScoringConfig, n_heads: int, width: int, layer: int, eps: float) -> nn.Module:
    if config.kind == "softmax":
        return Softmax()
    return Differential(config.flavour, n_heads, width, layer, eps)
