"""The parts around attention: normalisation, SwiGLU, rotary positions, the key-value cache."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import CoupledQKError
from .initial import INIT_STD, Normal, global_normal
from .linear import Linear

RMS_EPS = 1e-6


class RMSNorm(nn.RMSNorm):
    """RMSNorm with the project's ε, in the initialisation scheme of `initial.py`."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=RMS_EPS)

    def init_weights(self, normal: Normal = global_normal) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        # under autocast x may be in half precision; the fused kernel asks for one dtype and sums in float32
        return torch.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class QKNorm(nn.Module):
    """RMSNorm of every query and every key, with one scale for all heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k = RMSNorm(width), RMSNorm(width)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q(q), self.k(k)


class SwiGLU(nn.Module):
    """down(silu(gate x) ⊙ up x), with gate and up in one matrix (rows: gate | up)."""

    def __init__(self, d_model: int, d_ff: int, out_std: float = INIT_STD) -> None:
        super().__init__()
        self.out_std = out_std
        self.gate_up = Linear(d_model, 2 * d_ff)
        self.down = Linear(d_ff, d_model)
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        gate, up = self.gate_up.weight.data.chunk(2)
        normal(gate, "gate", INIT_STD)
        normal(up, "up", INIT_STD)
        normal(self.down.weight, "down", self.out_std)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x)))


def plain_swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) ⊙ up, the two side by side in the last axis."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class _LeanSwiGLU(torch.autograd.Function):
    """`plain_swiglu` that keeps only its input for the backward pass, not silu(gate) besides."""

    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return plain_swiglu(gate_up)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        (grad,) = grads
        gate, up = ctx.saved_tensors[0].chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        slope = torch.lerp(silu, torch.ones_like(silu), sigmoid)  # silu' = silu + σ (1 − silu)
        return torch.cat((grad * up * slope, grad * silu), dim=-1)


def swiglu(gate_up: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return plain_swiglu(gate_up)
    return _LeanSwiGLU.apply(gate_up)  # pyright: ignore[reportReturnType]


class KVCache:
    """Evolved keys and values of one layer's past tokens, (B, S, H_kv, d), in buffers of a fixed capacity."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the new tokens' and returns all so far."""
        start, end = self.length, self.length + k.shape[1]
        if end > self.capacity:
            raise CoupledQKError(
                f"the cache holds {self.capacity} tokens, but {start} are stored and {k.shape[1]} more were given: make a "
                "larger one"
            )
        if start and k.shape[0] != self.k.shape[0]:
            raise CoupledQKError(
                f"the cache holds {self.k.shape[0]} sequences, but {k.shape[0]} were given: make a cache for each batch"
            )
        if start == 0:
            self.k, self.v = (x.new_empty(x.shape[0], self.capacity, *x.shape[2:]) for x in (k, v))
        self.k[:, start:end], self.v[:, start:end] = k, v
        self.length = end
        return self.k[:, :end], self.v[:, :end]
