"""The scorings by name: the records that the entries of `registry.py` refer to."""

from torch import nn

from .. import registry
from ..config import ScoringConfig
from .record import Scoring

SCORINGS: dict[str, Scoring] = {name: registry.load(entry.record) for name, entry in registry.SCORINGS.items()}


def build_scoring(config: ScoringConfig, n_heads: int, width: int, layer: int, eps: float) -> nn.Module:
    return SCORINGS[config.kind].build(config, n_heads, width, layer, eps)
