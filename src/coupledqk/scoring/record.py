"""What the package needs to know about a scoring; each scoring's file ends with its record."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ..config import ScoringConfig


@dataclass(frozen=True)
class Scoring:
    build: Callable[[ScoringConfig, int, int, int, float], nn.Module]
    """The module from (config, n_heads, width of a query, layer, ε of its norms), with the methods of `Softmax`."""
    products: Callable[[float, int], float]
    """Multiply-adds for one head of one token, from the number of keys and the width of a query."""
    gates: int = 0
    """Numbers per head that it projects from the token's input x."""
    signed: bool = False
    """Its weights can be negative."""
