"""Rotary position embedding: rotates q and k by angles proportional to the position."""

from functools import cached_property

import torch
from torch import Tensor

from .config import check_rope_width
from .errors import CoupledQKError
from .torch_internals import is_transformed

THETA = 10_000.0


class Rope:
    """A rotation of q and k, (B, T, H, d), by angles that have these cosines and sines."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        """Both are (T, 1, d/2) or (B, T, 1, d/2)."""
        self.cos, self.sin = cos, sin

    def check(self, q: Tensor) -> None:
        """Raises an error unless there is an angle for each token and each pair of coordinates of q, (B, T, H, d)."""
        *batch, tokens, _, half = self.cos.shape
        if (tokens, 2 * half) != (q.shape[1], q.shape[3]) or batch not in ([], [1], [q.shape[0]]):
            raise CoupledQKError(
                f"rope for {tokens} positions and heads of width {2 * half}: expected {q.shape[1]} positions, one per token, "
                f"for each or all of the {q.shape[0]} sequences, and width {q.shape[3]}: build it with rope_at"
            )

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self._decoding(q):
            return self._rotate_token(q), self._rotate_token(k)
        return rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)

    def _decoding(self, q: Tensor) -> bool:
        """Whether q is a single token in decoding, where the overhead of calls dominates."""
        return q.shape[1] == 1 and q.dtype == torch.float32 and not torch.is_grad_enabled() and not _needs_plain()

    def _rotate_token(self, x: Tensor) -> Tensor:
        """`plain_rotate` in three calls: the halves are swapped instead of split."""
        cos, sin = self._whole
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for every coordinate, cached for all layers."""
        return torch.cat((self.cos, self.cos), dim=-1), torch.cat((-self.sin, self.sin), dim=-1)


def rope_at(positions: Tensor, width: int) -> Rope:
    """Rotary position embedding for (sub-)heads of that width at `positions`, (T,) or (B, T): a function of q and k.

    The pair of coordinates i and i + width/2 is rotated by the angle position · θ^(−2i/width).
    """
    check_rope_width(width)
    if positions.ndim not in (1, 2):
        raise CoupledQKError(f"positions of shape {tuple(positions.shape)}: expected (tokens,) or (batch, tokens)")
    frequencies = THETA ** (torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width)
    angles = positions[..., None, None].float() * frequencies  # (T, 1, width/2) or (B, T, 1, width/2)
    return Rope(angles.cos(), angles.sin())


def plain_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x (B, T, H, width) by the angles; −sin in place of sin inverts the rotation."""
    a, b = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`plain_rotate` in two passes over x instead of four. torch.compile fuses the plain version itself."""
    if _needs_plain():
        return plain_rotate(x, cos, sin)
    if not torch.is_grad_enabled():
        return _rotated(x, cos, sin)
    return _Rotation.apply(x, cos, sin)  # pyright: ignore[reportReturnType]


def _needs_plain() -> bool:
    return torch.compiler.is_compiling() or is_transformed()


def rotate_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Undoes `rotate` to the precision of x: the squares of rounded cosines and sines do not add up to exactly 1."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.double(), sin.double()
    size = cos.square() + sin.square()
    return rotate(x, (cos / size).to(dtype), (-sin / size).to(dtype))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    out = wide.new_empty(wide.shape)
    (a, b), (new_a, new_b) = wide.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=new_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=new_b).addcmul_(a, sin)
    return out.to(x.dtype)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return rotate(grads[0], cos, -sin), None, None
