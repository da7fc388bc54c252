"""Rotary position embedding: q and k turned by angles that grow with the position."""

import torch
from torch import Tensor

from .config import check_rope_width

THETA = 10_000.0


class Rope:
    """A rotation of q and k, (B, T, H, d), by angles that have these cosines and sines."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        """Both are (T, 1, d/2) or (B, T, 1, d/2)."""
        self.cos, self.sin = cos, sin

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)


def rope_at(positions: Tensor, width: int) -> Rope:
    """Rotary position embedding for (sub-)heads of that width at `positions`, (T,) or (B, T): a function of q and k.

    Coordinate i turns with i + width/2, by the angle position · θ^(−2i/width).
    """
    check_rope_width(width)
    frequencies = THETA ** (torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width)
    angles = positions[..., None, None].float() * frequencies  # (T, 1, width/2) or (B, T, 1, width/2)
    return Rope(angles.cos(), angles.sin())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, T, H, width) by the angles; with −sin in place of sin, back again."""
    a, b = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
