"""The Attention module: every variant is a choice of dynamics and of scoring.

    x ─ project ─► q, k, v ─ (qk_norm) ─ DYNAMICS ─ rope ─► cache ─► SCORING ─ project ─►

The dynamics act on the query and key of each token separately. They are applied after normalisation, before RoPE (a nonlinear
force does not commute with rotations, so that scores would depend on absolute positions after RoPE), and before the cache,
which therefore stores evolved keys.
"""

from typing import Any

import torch
from torch import Tensor, nn

from . import registry
from .config import AttentionConfig, head_width
from .dynamics import Static, build_dynamics, evolve_and_rotate, keeps_only_outputs
from .errors import CoupledQKError
from .initial import INIT_STD, Normal, global_normal
from .layers import RMS_EPS, KVCache, QKNorm
from .linear import Linear, linear
from .rope import Rope
from .scoring import build_scoring
from .torch_internals import autocasts, has_forward_hooks
from .values import FirstValues, ValueResidual
from .variants import variant


class Attention(nn.Module):
    """Multi-head attention, a drop-in for any transformer: `out, aux_loss = attention(x)`."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        config: AttentionConfig | None = None,
        layer: int = 0,
        out_std: float = INIT_STD,
    ) -> None:
        """`layer` counts from 0; differential scoring and value residuals depend on it. `out_std` is the initial standard
        deviation of the output matrix."""
        super().__init__()
        if config is not None and not isinstance(config, AttentionConfig):
            raise CoupledQKError(
                f"config={config!r}: expected an AttentionConfig; build a variant by its name with Attention.from_variant"
            )
        self.config = config = config or AttentionConfig()
        self.d_model, self.out_std = d_model, out_std
        self.width = head_width(d_model, n_heads, config)
        n_kv_heads = n_heads // config.group_size
        entry = registry.SCORINGS[config.scoring.kind]
        heads = (n_heads * entry.queries, n_kv_heads, n_kv_heads)
        self.split_sizes = [self.width * entry.sub_heads * n for n in heads]
        self.queries = entry.queries

        self.qkv = Linear(d_model, sum(self.split_sizes))  # rows: q | k | v
        self.qk_norm = QKNorm(self.width) if config.qk_norm else None
        self.dynamics = build_dynamics(config.dynamics, self.width, n_kv_heads * entry.sub_heads)
        self.value_residual = ValueResidual(layer) if config.value_residual else None
        self.scoring = build_scoring(config.scoring, n_heads, self.width, layer, RMS_EPS)
        self.out = Linear(d_model, d_model)
        self.init_weights()

    @classmethod
    def from_variant(cls, name: str, d_model: int, n_heads: int, layer: int = 0, **settings: Any) -> "Attention":
        """Builds a variant by name, with some settings changed.

        For example, `Attention.from_variant("euler", d_model=512, n_heads=8, n_steps=1)`.
        """
        return cls(d_model, n_heads, variant(name, **settings), layer)

    def init_weights(self, normal: Normal = global_normal) -> None:
        q, k, v = self.qkv.weight.data.split(self.split_sizes)
        # each head's first query is drawn like the query of a variant with one query per head
        for i, rows in enumerate(q.unflatten(0, (-1, self.queries, self.width)).unbind(1)):
            normal(rows, f"q{i + 1}" if i else "q", INIT_STD)
        normal(k, "k", INIT_STD)
        normal(v, "v", INIT_STD)
        normal(self.out.weight, "out", self.out_std)

    def forward(
        self,
        x: Tensor,
        causal_mask: Tensor | None = None,
        rope: Rope | None = None,
        cache: KVCache | None = None,
        first_values: FirstValues | None = None,
    ) -> tuple[Tensor, float]:
        """Maps x (B, T, d_model) to an output of the same shape, and returns an auxiliary loss, which no variant uses yet.

        `causal_mask` is boolean, True where a query may attend: (T, S) or (B, 1, T, S), where B and T may be 1; a padding
        mask of real tokens is `real[:, None, None, :]`. A causal attention never attends to later tokens, even if the mask
        allows it. `rope` rotates q and k (see `rope_at`). `cache` adds the S − T tokens before x. `first_values` carries the
        values of layer 0 to value residuals in later layers.
        """
        q, k, v = self.evolved(x, rope, first_values)
        if cache is not None:
            k, v = cache.append(k, v)
        out = self.scoring(q, k, v, *self._visible(causal_mask, q, k), x)
        return self.out(out.flatten(2)), 0.0

    def evolved(
        self, x: Tensor, rope: Rope | None = None, first_values: FirstValues | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of the tokens x, ready for the cache and for scoring."""
        self._check_input(x)
        q, k, v = self.project(x, rotated=rope is not None)
        if self.qk_norm is not None:
            q, k = self.qk_norm(q, k)
        if isinstance(rope, Rope):
            rope.check(q)
        q, k = evolve_and_rotate(self.dynamics, q, k, rope)
        if self.value_residual is not None:
            v = self.value_residual(v, first_values)
        return q, k, v

    def project(self, x: Tensor, rotated: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, T, H, d), k and v (B, T, H_kv, d); for differential scoring heads are sub-heads, in version 2 H counts
        queries. `rotated` is whether RoPE follows."""
        *qk_sizes, v_size = self.split_sizes
        if self._projects_v_apart(x, rotated):
            qk_weight, v_weight = self.qkv.weight.split([sum(qk_sizes), v_size])
            q, k = self._heads(linear(x, qk_weight), qk_sizes)
            (v,) = self._heads(linear(x, v_weight), [v_size])
        else:
            q, k, v = self._heads(self.qkv(x), self.split_sizes)
        return q, k, v

    def _heads(self, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return x.view(*x.shape[:-1], -1, self.width).split([size // self.width for size in sizes], dim=2)

    def _projects_v_apart(self, x: Tensor, rotated: bool) -> bool:
        """Whether v is projected separately, which saves memory: a view of a joint projection keeps the projected q and k
        alive, and the backward pass does not need them if it reconstructs them, or if they are only rotated."""
        if type(self.qkv) is not Linear or has_forward_hooks(self.qkv):
            return False
        if rotated and self.qk_norm is None and isinstance(self.dynamics, Static):
            cheap = not torch.compiler.is_compiling() and not autocasts(x.device)
            return torch.is_grad_enabled() and cheap
        return keeps_only_outputs(self.dynamics, x)

    def _visible(self, mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask and the `causal` flag for scoring; the flag selects the kernel's own causal mask, which requires T = S."""
        B, T, S = q.shape[0], q.shape[1], k.shape[1]
        if mask is not None:
            _check_mask(mask, B, T, S)
        if not self.config.causal or T == 1:
            return mask, False
        if mask is None and T == S:
            return None, True
        # the last query and the last key belong to the same token
        triangle = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        return triangle if mask is None else mask & triangle, False

    def _check_input(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.d_model or x.numel() == 0:
            raise CoupledQKError(
                f"input of shape {tuple(x.shape)}: expected (batch, tokens, {self.d_model}) with at least one sequence and "
                "one token"
            )


def _check_mask(mask: Tensor, B: int, T: int, S: int) -> None:
    if not isinstance(mask, Tensor):
        raise CoupledQKError(
            f"causal_mask={mask!r}: expected a tensor of booleans; for attention that is not causal, build it with causal=False"
        )
    fits = mask.shape == (T, S) or (
        mask.ndim == 4
        and all(n in allowed for n, allowed in zip(mask.shape, [(1, B), (1,), (1, T), (S,)], strict=True))
    )
    if mask.dtype != torch.bool or not fits:
        raise CoupledQKError(
            f"causal_mask of shape {tuple(mask.shape)} and dtype {mask.dtype}: expected booleans, True where a query may "
            f"look, of shape ({T}, {S}) or ({B} or 1, 1, {T} or 1, {S}); give a padding mask (batch, tokens) as "
            "mask[:, None, None, :]"
        )
