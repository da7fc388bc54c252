"""The dynamics as modules: (q, k) -> (q, k), with (B, T, H, d) queries and (B, T, H_kv, d) keys."""

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..config import LARGEST_STEP_SIZE, DynamicsConfig
from ..errors import CoupledQKError
from ..initial import Normal, global_normal
from ..rope import Rope
from ..torch_internals import autocasts, has_forward_hooks
from .evolve import integrate
from .fused import rebuilds
from .implementations import choose, integrate_fast
from .methods import FORCES, METHODS, invertible


class Dynamics(nn.Module):
    """An integrator or a control, with a force shared by the heads and one step size dt = exp(τ) per key head."""

    impl: str = "auto"
    """Implementation that forward uses (implementations.py). It may be changed at any time."""

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

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Reports an error if dt = exp(tau) is too large for a step size: the file is damaged or the training diverged."""
        *_, errors = others
        tau = state_dict.get(f"{prefix}tau")
        if isinstance(tau, Tensor) and not tau.is_meta and not bool((tau <= math.log(LARGEST_STEP_SIZE)).all()):
            errors.append(f"{prefix}tau: expected dt = exp(tau) of at most {LARGEST_STEP_SIZE:g} for every head.")
        super()._load_from_state_dict(state_dict, prefix, *others)

    @property
    def step_size(self) -> Tensor | float:
        tau, gate = self.tau, self.gate
        dt = self.config.step_size if tau is None else tau.exp()
        return dt if gate is None else gate * dt

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return integrate(q, k, self.step_size, self.force, self.config.n_steps, self.config.method, impl=self.impl)

    def inverse(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if METHODS[self.config.method].inverse is None:
            raise CoupledQKError(f"method {self.config.method!r} has no inverse: {', '.join(invertible())} have one")
        return integrate(
            q, k, self.step_size, self.force, self.config.n_steps, self.config.method, inverse=True, impl="reference"
        )

    def extra_repr(self) -> str:
        return f"method={self.config.method}, n_steps={self.config.n_steps}"


def evolve_and_rotate(
    dynamics: nn.Module, q: Tensor, k: Tensor, rope: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
) -> tuple[Tensor, Tensor]:
    """Applies the dynamics and then RoPE, as one operator if that saves memory."""
    if rope is None:
        return dynamics(q, k)
    if not isinstance(rope, Rope) or has_forward_hooks(dynamics) or not keeps_only_outputs(dynamics, q, k):
        return rope(*dynamics(q, k))
    config = dynamics.config
    impl = choose(dynamics.impl, q, k, dynamics.step_size, dynamics.force, config.method)
    return integrate_fast(impl, q, k, dynamics.step_size, dynamics.force, config.n_steps, config.method, rope)


def keeps_only_outputs(dynamics: nn.Module, q: Tensor, k: Tensor | None = None) -> TypeGuard[Dynamics]:
    """Whether only the evolved q and k are saved for the backward pass; x may be passed in place of the projected q and k."""
    if not isinstance(dynamics, Dynamics) or not torch.is_grad_enabled() or autocasts(q.device):
        return False
    k, config = q if k is None else k, dynamics.config
    impl = choose(dynamics.impl, q, k, dynamics.step_size, dynamics.force, config.method)
    return impl in ("fused", "triton") and rebuilds(q, k, config.n_steps, config.method)


def set_impl(model: nn.Module, impl: str) -> None:
    """Sets the implementation of all dynamics inside a model."""
    for module in model.modules():
        if isinstance(module, Dynamics):
            module.impl = impl


def build_dynamics(config: DynamicsConfig, width: int, n_kv_heads: int) -> nn.Module:
    """The dynamics module for (sub-)heads of this width."""
    build = METHODS[config.method].build or Dynamics
    return build(config, width, n_kv_heads)
