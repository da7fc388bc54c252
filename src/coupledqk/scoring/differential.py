"""Differential scoring: the difference of two softmax maps, (A₁ − λ A₂) V, normalised per head.

A head consists of two sub-heads of half the width, in halves order: sub-head i is paired with i + H for q, k and v, and the
head's value is the concatenation of the pair's. By linearity A₁V − λA₂V is two calls of the fast kernel over all sub-heads, the
second with the halves of v exchanged; q, k and v then have the same width, as the CPU's flash kernel requires. For long
sequences on a CPU, `blocks.py` computes the maps only once.

There are two flavours of λ, both based on λ_init = 0.8 − 0.6 exp(−0.3 ℓ) in layer ℓ, counted from 0:

    paper       one learned scalar per head, initially λ_init
    official    exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init, vectors shared by the heads (Ye et al., 2025)

The official flavour is transformers' DiffLlama, whose q_proj, k_proj and v_proj are the rows of `qkv` in that order.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..initial import Normal, global_normal
from .blocks import attend_difference, worth_blocks
from .record import Scoring
from .softmax import attend, attention_weights

OFFICIAL_LAMBDA_STD = 0.1


class Differential(nn.Module):
    def __init__(self, flavour: str, n_heads: int, width: int, layer: int, eps: float) -> None:
        """`n_heads` is the number of whole heads, `width` the width of a sub-head."""
        super().__init__()
        self.flavour, self.eps = flavour, eps
        self.lam_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        if flavour == "paper":
            self.lam = nn.Parameter(torch.empty(n_heads))
        else:
            self.lam_q1, self.lam_k1, self.lam_q2, self.lam_k2 = (nn.Parameter(torch.empty(width)) for _ in range(4))
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        if self.flavour == "paper":
            nn.init.constant_(self.lam, self.lam_init)
            return
        for name in ("lam_q1", "lam_k1", "lam_q2", "lam_k2"):
            normal(getattr(self, name), name, OFFICIAL_LAMBDA_STD)

    def strength(self) -> Tensor:
        """λ, one value per head or one for all heads."""
        if self.flavour == "paper":
            return self.lam
        return (self.lam_q1 @ self.lam_k1).exp() - (self.lam_q2 @ self.lam_k2).exp() + self.lam_init

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> Tensor:
        if worth_blocks(q, mask):
            return self._normalise(attend_difference(q, k, v, self.strength(), causal))
        v_left, v_right = v.chunk(2, dim=2)
        own = attend(q, k, v, mask, causal)  # A₁ v_left, A₂ v_right
        other = attend(q, k, torch.cat((v_right, v_left), dim=2), mask, causal)  # A₁ v_right, A₂ v_left
        first_left, second_right = own.chunk(2, dim=2)
        first_right, second_left = other.chunk(2, dim=2)
        first = torch.cat((first_left, first_right), dim=-1)  # A₁ V, (B, T, H, 2 · width)
        second = torch.cat((second_left, second_right), dim=-1)  # A₂ V
        lam = self.strength().to(first.dtype)[..., None]
        return self._normalise(first - lam * second)

    def weights(
        self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False, x: Tensor | None = None
    ) -> Tensor:
        """The signed map A₁ − λ A₂, (B, H, T, S)."""
        first, second = attention_weights(q, k, mask, causal).chunk(2, dim=1)
        return first - self.strength().to(first.dtype)[..., None, None] * second

    def plain(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output, computed from the definition, and the weights."""
        weights = self.weights(q, k, mask, causal)
        v = torch.cat(v.chunk(2, dim=2), dim=-1)  # (B, S, H_kv, 2 · width)
        v = v.repeat_interleave(weights.shape[1] // v.shape[2], dim=2)
        return self._normalise(torch.einsum("bhts,bshd->bthd", weights, v)), weights

    def _normalise(self, out: Tensor) -> Tensor:
        return (1 - self.lam_init) * F.rms_norm(out, out.shape[-1:], eps=self.eps)


DIFFERENTIAL = Scoring(
    build=lambda config, n_heads, width, layer, eps: Differential(config.flavour, n_heads, width, layer, eps),
    # the kernel is called twice over two sub-heads; only on a CPU are the maps computed once
    products=lambda keys, width: 4 * 2 * keys * width,
    signed=True,
)
