"""Alternating affine coupling, as in real-NVP flows.

    k ← k ⊙ exp(s(q)) + t(q)
    q ← q ⊙ exp(s(k)) + t(k)        with the new k

Exactly invertible for any s and t; changes volume by exp(Σs). The networks' last layers start at 0, so the map starts as
the exact identity; tanh bounds s, so no coordinate is scaled by more than e.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..initial import Normal, global_normal

ScaleAndShift = Callable[[Tensor], tuple[Tensor, Tensor]]


def affine(q: Tensor, k: Tensor, on_key: ScaleAndShift, on_query: ScaleAndShift) -> tuple[Tensor, Tensor]:
    s, t = on_key(q)
    k = k * s.exp() + t
    s, t = on_query(k)
    q = q * s.exp() + t
    return q, k


def affine_inverse(q: Tensor, k: Tensor, on_key: ScaleAndShift, on_query: ScaleAndShift) -> tuple[Tensor, Tensor]:
    s, t = on_query(k)
    q = (q - t) * (-s).exp()
    s, t = on_key(q)
    k = (k - t) * (-s).exp()
    return q, k


class ScaleShiftNet(nn.Module):
    """x ↦ (s, t), both as wide as x: tanh and identity of the two halves of a d → d → 2d MLP."""

    def __init__(self, d: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.w1 = nn.Parameter(torch.empty(d, d))
        self.w2 = nn.Parameter(torch.empty(2 * d, d))
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.w1, "w1", self.std)
        nn.init.zeros_(self.w2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s, t = F.linear(F.silu(F.linear(x, self.w1)), self.w2).chunk(2, dim=-1)
        return torch.tanh(s), t
