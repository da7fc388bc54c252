"""The record of a scoring, with the properties that the package needs. Each scoring's file ends with its record."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ..config import ScoringConfig


@dataclass(frozen=True)
class Scoring:
    build: Callable[[ScoringConfig, int, int, int, float], nn.Module]
    """Function that builds the module, with the methods of `Softmax`, from (config, n_heads, width of a query, layer, ε of its
    norms)."""
    products: Callable[[float, int], float]
    """Function that returns the multiply-adds per head and token from the number of keys and the width of a query."""
    gates: int = 0
    """Number of values per head that the scoring projects from the token's input x."""
    signed: bool = False
    """Whether its weights can be negative."""
