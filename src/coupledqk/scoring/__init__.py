"""Scoring: evolved q, k and v in, output out. Each has a fast path and a plain one that also returns the weights."""

from torch import nn

from .. import registry
from ..config import ScoringConfig
from .differential import Differential
from .differential_v2 import DifferentialV2
from .gated import Gated
from .record import Scoring
from .sink import Sink
from .softmax import Softmax, attend, attention_weights

__all__ = [
    "SCORINGS",
    "Differential",
    "DifferentialV2",
    "Gated",
    "Scoring",
    "Sink",
    "Softmax",
    "attend",
    "attention_weights",
    "build_scoring",
]

SCORINGS: dict[str, Scoring] = {name: registry.load(entry.record) for name, entry in registry.SCORINGS.items()}
"""Every scoring by name: the records that the lines of `registry.py` point to."""


def build_scoring(config: ScoringConfig, n_heads: int, width: int, layer: int, eps: float) -> nn.Module:
    return SCORINGS[config.kind].build(config, n_heads, width, layer, eps)
