"""Alternating affine coupling, as in real-NVP flows.

    k ← k ⊙ exp(s(q)) + t(q)
    q ← q ⊙ exp(s(k)) + t(k)        with the new k

The map is exactly invertible for any s and t and changes volume by exp(Σs). The last layers of the networks are initially 0, so
that the map starts as the exact identity. tanh bounds s, so that no coordinate is scaled by more than e.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DynamicsConfig
from ..initial import Normal, global_normal
from .grouping import group_heads, ungroup_heads
from .method import Method
from .operators import dtype_of_sums

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
    """The map x ↦ (s, t): the output of a d → d → 2d MLP, split into two halves of width d, with tanh applied to s."""

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


class AffineDynamics(nn.Module):
    """Alternating affine coupling; with grouped queries a key is scaled and shifted by the means over its group."""

    def __init__(self, config: DynamicsConfig, width: int, n_kv_heads: int) -> None:
        super().__init__()
        self.on_key = ScaleShiftNet(width, config.force_std)
        self.on_query = ScaleShiftNet(width, config.force_std)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._couple(affine, q, k)

    def inverse(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._couple(affine_inverse, q, k)

    def _couple(self, coupling, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        dtype, sum_dtype = q.dtype, dtype_of_sums(q, k)

        def on_key(q: Tensor) -> tuple[Tensor, Tensor]:
            s, t = on_query(q, self.on_key)  # (B, T, H_kv, G, d)
            return s.mean(3, keepdim=True), t.mean(3, keepdim=True)

        def on_query(x: Tensor, net: ScaleShiftNet = self.on_query) -> tuple[Tensor, Tensor]:
            s, t = net(x.to(dtype))
            return s.to(sum_dtype), t.to(sum_dtype)

        q, k = coupling(*group_heads(q.to(sum_dtype), k.to(sum_dtype), axis=2), on_key, on_query)
        q, k = ungroup_heads(q, k, axis=2)
        return q.to(dtype), k.to(dtype)


AFFINE = Method(build=AffineDynamics, evaluations=lambda n: (1, 1), matrices=3, starts_as_identity=True)
