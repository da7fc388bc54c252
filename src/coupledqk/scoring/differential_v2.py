"""Differential scoring, version 2 (Ye et al., 2026): A₁V − λ A₂V with λ = σ(W x) per token and head, and no normalisation.

A head has two adjacent queries of full width (2i and 2i + 1) that share one key and value. This is grouped-query attention with
twice the queries, a single call of the fast kernel. W is n_heads × d_model, and x is the input of the attention.
"""

from torch import Tensor

from ..initial import INIT_STD, Normal, global_normal
from ..linear import Linear
from .record import Scoring
from .softmax import Softmax, attend, attention_weights


class DifferentialV2(Softmax):
    def __init__(self, n_heads: int, width: int) -> None:
        super().__init__()
        self.lam = Linear(n_heads * width, n_heads)
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.lam.weight, "lam", INIT_STD)

    def strength(self, x: Tensor | None) -> Tensor:
        """λ, (B, T, H)."""
        assert x is not None
        return self.lam(x).sigmoid()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> Tensor:
        first, second = attend(q, k, v, mask, causal).unflatten(2, (-1, 2)).unbind(3)
        return first - self.strength(x).to(first.dtype)[..., None] * second

    def weights(
        self, q: Tensor, k: Tensor, mask: Tensor | None = None, causal: bool = False, x: Tensor | None = None
    ) -> Tensor:
        """The signed map A₁ − λ A₂, (B, H, T, S)."""
        first, second = attention_weights(q, k, mask, causal).unflatten(1, (-1, 2)).unbind(2)
        return first - self.strength(x).to(first.dtype).transpose(1, 2)[..., None] * second


DIFFERENTIAL_V2 = Scoring(
    build=lambda config, n_heads, width, layer, eps: DifferentialV2(n_heads, width),
    products=lambda keys, width: 2 * 2 * keys * width,
    gates=1,
    signed=True,
)
