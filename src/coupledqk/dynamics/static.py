"""No dynamics: q and k are scored as projected."""

from torch import Tensor, nn

from .method import Method


class Static(nn.Module):
    """The identity map of q and k."""

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def inverse(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


STATIC = Method(
    build=lambda config, width, n_kv_heads: Static(),
    evaluations=lambda n: (0, 0),
    matrices=0,
    starts_as_identity=True,
)
