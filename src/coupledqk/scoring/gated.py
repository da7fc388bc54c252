"""Gated softmax scoring: each head's output times a sigmoid gate per token, σ(W x) (Qiu et al., 2025, headwise).

W is n_heads × d_model, and x is the input of the attention. A gate near 0 lets a token ignore a head without an attention sink
on the first token.
"""

from torch import Tensor

from ..initial import INIT_STD, Normal, global_normal
from ..linear import Linear
from .record import Scoring
from .softmax import SOFTMAX, Softmax


class Gated(Softmax):
    def __init__(self, n_heads: int, width: int) -> None:
        super().__init__()
        self.gate = Linear(n_heads * width, n_heads)
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        normal(self.gate.weight, "gate", INIT_STD)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> Tensor:
        return self._gated(super().forward(q, k, v, mask, causal), x)

    def plain(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        x: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        out, weights = super().plain(q, k, v, mask, causal)
        return self._gated(out, x), weights

    def _gated(self, out: Tensor, x: Tensor | None) -> Tensor:
        assert x is not None
        return out * self.gate(x).sigmoid().to(out.dtype)[..., None]


GATED = Scoring(
    build=lambda config, n_heads, width, layer, eps: Gated(n_heads, width),
    products=SOFTMAX.products,
    gates=1,
)
