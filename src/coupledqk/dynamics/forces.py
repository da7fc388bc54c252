"""The force f(q) that acts on keys: a function of one vector, shared by all tokens and all heads of a layer."""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..initial import Normal, global_normal

Force = Callable[[Tensor], Tensor]


class MLPForce(nn.Module):
    """f(q) = W₂ silu(W₁ q), the paper's coupling network: d → d → d without biases."""

    matrices: ClassVar = 2
    """Size of the weights in matrix products, in d × d matrices."""

    def __init__(self, d: int, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.w1 = nn.Parameter(torch.empty(d, d))
        self.w2 = nn.Parameter(torch.empty(d, d))
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.w1, "w1", self.std)
        normal(self.w2, "w2", self.std)

    def forward(self, q: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(q, self.w1)), self.w2)


class LinearForce(nn.Module):
    """f(q) = W q. The map is linear: unless queries and keys are normalised before it, it can be folded into W_q and W_k, and
    represents the same functions as standard attention."""

    matrices: ClassVar = 1

    def __init__(self, d: int, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.w = nn.Parameter(torch.empty(d, d))
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.w, "w", self.std)

    def forward(self, q: Tensor) -> Tensor:
        return F.linear(q, self.w)


class PotentialForce(nn.Module):
    """f = −∇V of the potential V(q) = Σ cᵢ log cosh((Wq)ᵢ) with a 2d × d matrix W, which makes leapfrog symplectic."""

    matrices: ClassVar = 4

    def __init__(self, d: int, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.w = nn.Parameter(torch.empty(2 * d, d))
        self.c = nn.Parameter(torch.empty(2 * d))
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.w, "w", self.std)
        nn.init.ones_(self.c)

    def potential(self, q: Tensor) -> Tensor:
        x = F.linear(q, self.w).abs()
        # log cosh x without overflow
        return (self.c * (x + F.softplus(-2 * x) - math.log(2))).sum(-1)

    def forward(self, q: Tensor) -> Tensor:
        return -F.linear(self.c * torch.tanh(F.linear(q, self.w)), self.w.T)


class ZeroForce(nn.Module):
    """f = 0: queries drift along their keys, and keys do not change."""

    matrices: ClassVar = 0

    def __init__(self, d: int, std: float = 0.02) -> None:
        super().__init__()

    def forward(self, q: Tensor) -> Tensor:
        return torch.zeros_like(q)


ForceModule = MLPForce | LinearForce | PotentialForce | ZeroForce
