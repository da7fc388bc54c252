"""The way of a token's query and key through the integration steps, drawn in a plane of its own.

The n + 1 states of q and the n + 1 states of k are vectors of one space. They are projected on the plane through the origin
that holds most of their squared length (a principal component analysis without centring), so lengths and angles at the
origin keep their meaning. The plane is turned until q starts to the right along the first axis and k above it: pictures of
different tokens, heads and runs can be compared.
"""

import torch
from torch import Tensor

from ..analysis import LayerTape


def plane_paths(layer: LayerTape) -> tuple[Tensor, Tensor]:
    """The points (q_x, q_y, k_x, k_y) after each step, (H, T, n + 1, 4), and the part of the squared length held, (H, T).

    H counts sub-heads, as the dynamics do. With grouped queries each goes with its group's key.
    """
    q, k = (x[:, 0].cpu().double() for x in layer.trajectory())  # (n + 1, T, H, d)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    states = torch.cat((q, k)).permute(2, 1, 0, 3)  # (H, T, 2n + 2, d)
    # The coordinates along principal axes are eigenvectors of the small matrix of inner products.
    squares, vectors = torch.linalg.eigh(states @ states.mT)
    squares = squares.clamp(min=0)
    points = vectors[..., -2:] * squares[..., None, -2:].sqrt()  # (H, T, 2n + 2, 2)
    held = squares[..., -2:].sum(-1) / squares.sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    q_points, k_points = _turned(points).chunk(2, dim=2)
    return torch.cat((q_points, k_points), dim=-1), held


def _turned(points: Tensor) -> Tensor:
    """The first point on the first axis, the first point of the second half above it."""
    x, y = points[..., 0, :].unbind(-1)
    angle = -torch.atan2(y, x)
    turn = torch.stack((angle.cos(), angle.sin(), -angle.sin(), angle.cos()), -1).unflatten(-1, (2, 2))
    points = points @ turn
    below = points[..., points.shape[-2] // 2, 1] < 0
    return points * torch.stack((torch.ones_like(x), 1.0 - 2.0 * below), -1)[..., None, :]
