"""Motion of the query and the key of each token over the integration steps, as numbers and as paths in a plane.

The n + 1 states of q and the n + 1 states of k are vectors in the same space. They are projected onto the plane through the
origin that keeps most of their squared length (a principal component analysis without centring), so that lengths and angles
at the origin keep their meaning. The plane is rotated so that q starts on the positive first axis and k above it, which makes
pictures of different tokens, heads and runs comparable.
"""

import torch
from torch import Tensor

from ..analysis import LayerTape

NUMBERS = ("q_length", "k_length", "q_moved", "k_moved", "q_turned", "k_turned", "angle")
"""Lengths and distances are relative to the vector's length before the dynamics. `turned` is the angle to the vector before the
dynamics, and `angle` is the angle between q and k, both in degrees."""
UNITS = (1e-3,) * 4 + (1e-2,) * 3
"""The value of one unit of the stored code, for each number."""


def states_of(layer: LayerTape) -> tuple[Tensor, Tensor]:
    """q and k after each step, (H, T, n + 1, d) in float64. H counts sub-heads; each query is paired with its group's key. If
    heads have two queries, all first queries come before all second ones, in the order of sub-heads."""
    q, k = (x[:, 0].cpu().double() for x in layer.states())  # (n + 1, T, H, d)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    order = torch.arange(q.shape[2]).view(-1, layer.attention.queries).T.flatten()
    return q.permute(2, 1, 0, 3)[order], k.permute(2, 1, 0, 3)[order]


def motion_numbers(q: Tensor, k: Tensor) -> Tensor:
    """The values of `NUMBERS` after each step, (H, T, n + 1, 7)."""
    tiny = torch.finfo(q.dtype).tiny
    values: dict[str, Tensor] = {"angle": _angle(q, k)}
    for name, x in (("q", q), ("k", k)):
        start = x[..., :1, :]
        length = start.norm(dim=-1).clamp(min=tiny)
        values[f"{name}_length"] = x.norm(dim=-1) / length
        values[f"{name}_moved"] = (x - start).norm(dim=-1) / length
        values[f"{name}_turned"] = _angle(x, start)
    return torch.stack([values[name] for name in NUMBERS], dim=-1)


def _angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle in degrees. Unlike the arc cosine, it is also accurate for small angles."""
    a, b = torch.nn.functional.normalize(a, dim=-1), torch.nn.functional.normalize(b, dim=-1)
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1)))


def plane_paths(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The points (q_x, q_y, k_x, k_y) after each step, (H, T, n + 1, 4), and the share of the squared length that the plane
    keeps, (H, T)."""
    states = torch.cat((q, k), dim=2)  # (H, T, 2n + 2, d)
    # The coordinates along the principal axes follow from the eigenvectors of the small Gram matrix.
    squares, vectors = torch.linalg.eigh(states @ states.mT)
    squares = squares.clamp(min=0)
    points = vectors[..., -2:] * squares[..., None, -2:].sqrt()  # (H, T, 2n + 2, 2)
    held = squares[..., -2:].sum(-1) / squares.sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    q_points, k_points = _rotated(points).chunk(2, dim=2)
    return torch.cat((q_points, k_points), dim=-1), held


def _rotated(points: Tensor) -> Tensor:
    """Rotates the points so that the first is on the first axis and the first point of the second half is above it."""
    x, y = points[..., 0, :].unbind(-1)
    angle = -torch.atan2(y, x)
    turn = torch.stack((angle.cos(), angle.sin(), -angle.sin(), angle.cos()), -1).unflatten(-1, (2, 2))
    points = points @ turn
    below = points[..., points.shape[-2] // 2, 1] < 0
    return points * torch.stack((torch.ones_like(x), 1.0 - 2.0 * below), -1)[..., None, :]
