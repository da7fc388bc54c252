"""Layers besides attention: normalisation, SwiGLU and the key-value cache.

RMSNorm and SwiGLU have a plain definition and a lean implementation. The lean one has a hand-written backward pass that saves
little and makes few passes over memory; second derivatives use the plain definition.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import CoupledQKError
from .initial import INIT_STD, Normal, global_normal
from .linear import Linear, is_single_row
from .torch_internals import again, is_transformed

RMS_EPS = 1e-6


class RMSNorm(nn.RMSNorm):
    """RMSNorm with the default ε of this package and the initialisation scheme of `initial.py`."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=RMS_EPS)

    def init_weights(self, normal: Normal = global_normal) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, RMS_EPS)


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight ⊙ x / √(mean(x²) + ε) for each row. This is one kernel on a GPU and about ten operators on a CPU."""
    # under autocast x may be in half precision; the kernel requires a single dtype and sums in float32
    return torch.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if not x.is_cpu or x.dtype not in (torch.float32, torch.float64) or x.dtype != weight.dtype or not can_be_lean():
        return plain_rms_norm(x, weight, eps)
    if torch.is_grad_enabled():
        return _LeanRMSNorm.apply(x, weight, eps)  # pyright: ignore[reportReturnType]
    if is_single_row(x):
        row = x.flatten()
        return (x * weight).mul_((float(row.dot(row)) / len(row) + eps) ** -0.5)
    return (x * inverse_rms(x, eps)).mul_(weight)


def can_be_lean() -> bool:
    """Whether lean implementations can be used. torch.compile fuses the plain definitions, and torch.func requires them."""
    return not torch.compiler.is_compiling() and not is_transformed()


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / √(mean(x²) + ε) for each row, (..., 1)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


class _LeanRMSNorm(torch.autograd.Function):
    """`plain_rms_norm` that saves its input and one number per row, with three passes forward and six backward."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = inverse_rms(x, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            return *again(lambda x, weight: plain_rms_norm(x, weight, ctx.eps), (x, weight), grad), None
        d = x.shape[-1]
        product = (grad * x).reshape(-1, d)
        weight_grad = torch.mv(product.T, scale.flatten())
        # s (w g) − x s³ mean(w g x), with s the scale of the row
        share = torch.mv(product, weight).view(scale.shape).mul_(scale.pow(3)).div_(d)
        x_grad = torch.mul(grad, weight, out=product.view(x.shape)).mul_(scale).addcmul_(x, share, value=-1)
        return x_grad, weight_grad, None


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
    """silu(gate) ⊙ up, with gate and up concatenated along the last axis."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class _LeanSwiGLU(torch.autograd.Function):
    """`plain_swiglu` that saves only its input, with four passes over memory in the backward pass."""

    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return plain_swiglu(gate_up)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor | None:
        (grad,), (gate_up,) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():
            return again(plain_swiglu, (gate_up,), grad)[0]
        gate, up = gate_up.chunk(2, dim=-1)
        gate_up_grad = torch.empty_like(gate_up)
        gate_grad, up_grad = gate_up_grad.chunk(2, dim=-1)
        torch.mul(grad, up, out=gate_grad)
        torch.ops.aten.silu_backward.grad_input(gate_grad, gate, grad_input=gate_grad)
        torch.ops.aten.silu.out(gate, out=up_grad).mul_(grad)
        return gate_up_grad


def swiglu(gate_up: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or not can_be_lean():
        return plain_swiglu(gate_up)
    return _LeanSwiGLU.apply(gate_up)  # pyright: ignore[reportReturnType]


class KVCache:
    """Evolved keys and values of one layer's past tokens, (B, S, H_kv, d), in buffers of a fixed capacity."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores keys and values of new tokens and returns those of all tokens so far."""
        start, end = self.length, self.length + k.shape[1]
        if end > self.capacity:
            raise CoupledQKError(
                f"the cache holds {self.capacity} tokens, but {start} are stored and {k.shape[1]} more were given: make a "
                "larger one"
            )
        if start and (k.shape[2:] != self.k.shape[2:] or k.dtype != self.k.dtype):
            raise CoupledQKError(
                f"the cache holds keys of {tuple(self.k.shape[2:])} (heads, width) in {self.k.dtype}, but "
                f"{tuple(k.shape[2:])} in {k.dtype} were given: make a cache for each layer of each model"
            )
        if start and k.shape[0] != self.k.shape[0]:
            raise CoupledQKError(
                f"the cache holds {self.k.shape[0]} sequences, but {k.shape[0]} were given: make a cache for each batch"
            )
        if start == 0:
            self.k, self.v = (x.new_empty(x.shape[0], self.capacity, *x.shape[2:]) for x in (k, v))
        self.k.narrow(1, start, end - start).copy_(k)
        self.v.narrow(1, start, end - start).copy_(v)
        self.length = end
        return self.k.narrow(1, 0, end), self.v.narrow(1, 0, end)
