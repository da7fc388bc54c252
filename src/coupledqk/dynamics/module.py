"""The dynamics as modules: (q, k) -> (q, k), with (B, T, H, d) queries and (B, T, H_kv, d) keys."""

import math

import torch
from torch import Tensor, nn

from ..config import DynamicsConfig
from ..errors import CoupledQKError
from ..initial import Normal, global_normal
from .affine import ScaleShiftNet, affine, affine_inverse
from .evolve import INVERSES, group_heads, integrate, ungroup_heads
from .forces import FORCES


class Static(nn.Module):
    """No dynamics: q and k are scored as projected."""

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def inverse(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k


class Dynamics(nn.Module):
    """An integrator or a control, with a force shared by the heads and one step size dt = exp(τ) per key head."""

    impl: str = "auto"
    """How forward computes, see implementations.py; it may change at any time."""

    def __init__(self, config: DynamicsConfig, width: int, n_kv_heads: int) -> None:
        super().__init__()
        self.config = config
        self.tau = nn.Parameter(torch.empty(n_kv_heads)) if config.learn_step_size else None
        self.gate = nn.Parameter(torch.empty(n_kv_heads)) if config.gate else None
        self.force = FORCES[config.force](width, config.force_std)
        self.init_weights()

    def init_weights(self, normal: Normal = global_normal) -> None:
        if self.tau is not None:
            nn.init.constant_(self.tau, math.log(self.config.step_size))
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    @property
    def step_size(self) -> Tensor | float:
        dt = self.config.step_size if self.tau is None else self.tau.exp()
        return dt if self.gate is None else self.gate * dt

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return integrate(q, k, self.step_size, self.force, self.config.n_steps, self.config.method, impl=self.impl)

    def inverse(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.method not in INVERSES:
            raise CoupledQKError(
                f"method {self.config.method!r} has no inverse: {', '.join([*INVERSES, 'affine'])} have one"
            )
        return integrate(
            q, k, self.step_size, self.force, self.config.n_steps, self.config.method, inverse=True, impl="reference"
        )

    def extra_repr(self) -> str:
        return f"method={self.config.method}, n_steps={self.config.n_steps}"


class AffineDynamics(nn.Module):
    """Alternating affine coupling; with grouped queries a key is scaled and shifted by the means over its group."""

    def __init__(self, config: DynamicsConfig, width: int) -> None:
        super().__init__()
        self.on_key = ScaleShiftNet(width, config.force_std)
        self.on_query = ScaleShiftNet(width, config.force_std)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._couple(affine, q, k)

    def inverse(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self._couple(affine_inverse, q, k)

    def _couple(self, coupling, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        dtype = q.dtype
        q, k = coupling(*group_heads(q, k, axis=2), self._mean_on_key, self.on_query)
        q, k = ungroup_heads(q, k, axis=2)
        return q.to(dtype), k.to(dtype)

    def _mean_on_key(self, q: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self.on_key(q)  # (B, T, H_kv, G, d)
        return s.mean(3, keepdim=True), t.mean(3, keepdim=True)


def set_impl(model: nn.Module, impl: str) -> None:
    """Chooses the implementation of all dynamics inside a model."""
    for module in model.modules():
        if isinstance(module, Dynamics):
            module.impl = impl


def build_dynamics(config: DynamicsConfig, width: int, n_kv_heads: int) -> nn.Module:
    """The module for (sub-)heads of that width."""
    if config.method == "none":
        return Static()
    if config.method == "affine":
        return AffineDynamics(config, width)
    return Dynamics(config, width, n_kv_heads)
