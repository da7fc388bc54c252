"""Value residual: the values of the first layer, mixed into those of every later layer (Zhou et al., 2024, ResFormer).

    v ← λ₁ v + λ₂ v_first        λ₁ and λ₂ learned per layer, initially ½ each

The map is token-local like the dynamics and applied before the cache, which therefore stores mixed values. Decoding needs the
first-layer values of the new tokens only.
"""

import torch
from torch import Tensor, nn

from .errors import CoupledQKError
from .initial import Normal, global_normal


class FirstValues:
    """Carries the values of a model's first layer to its later layers, within one forward pass."""

    v: Tensor | None = None


class ValueResidual(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.empty(2)) if layer else None  # own | first
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        if self.mix is not None:
            nn.init.constant_(self.mix, 0.5)

    def forward(self, v: Tensor, first_values: FirstValues | None) -> Tensor:
        if self.mix is None:
            if first_values is not None:
                first_values.v = v
            return v
        if first_values is None or first_values.v is None:
            raise CoupledQKError(
                "value_residual=True needs the values of the first layer: create one FirstValues() for each forward pass and "
                "pass it to the attention of every layer, layer 0 first"
            )
        own, first = self.mix.to(v.dtype)
        return own * v + first * first_values.v
