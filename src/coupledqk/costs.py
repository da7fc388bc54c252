"""What a model costs, from its configuration alone: parameters, arithmetic, bytes."""

from dataclasses import dataclass

import torch

from .config import AttentionConfig, ModelConfig, head_width
from .model import TransformerLM

FLOAT32 = 4


def count_parameters(config: ModelConfig) -> int:
    """Counted on the meta device: the real model, without its memory."""
    with torch.device("meta"):
        model = TransformerLM(config)
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the matrix products, for one token of a sequence: two for each multiply-add.

    What is not a product (norms, softmax, SiLU, look-ups, the optimiser) is not counted, nor what an attention kernel
    recomputes on its own. So a ratio of these is a reference for a measured speed, not a bound.
    """

    projections: float
    """Of attention: q, k, v and the output."""
    dynamics: float
    scores: float
    """q kᵀ and the weighted sum of v, over the keys that a query may look at."""
    ffn: float
    logits: float
    recomputed: float
    """By the fused dynamics, which save their inputs alone and replay the steps in the backward pass."""

    @property
    def forward(self) -> float:
        return self.projections + self.dynamics + self.scores + self.ffn + self.logits

    @property
    def training(self) -> float:
        """Forward and backward: each product has two in its gradient."""
        return 3 * self.forward + self.recomputed


def flops(config: ModelConfig, seq_len: int, fused: bool = False) -> Flops:
    """With `fused`, the dynamics as `dynamics/fused.py` computes them where it can; otherwise as the readable methods do."""
    attention, d = config.attention, config.d_model
    d_kv = d // attention.group_size
    keys = (seq_len + 1) / 2 if attention.causal else seq_len
    # differential scoring calls the kernel twice; only on a CPU are its maps made once
    maps = 2 if attention.scoring.kind == "differential" else 1
    forward, recomputed = _dynamics_products(config, fused)
    return Flops(
        projections=2 * config.n_layers * d * (2 * d + 2 * d_kv),
        dynamics=2 * config.n_layers * forward,
        scores=2 * config.n_layers * maps * 2 * keys * d,
        ffn=2 * config.n_layers * 3 * d * config.d_ff,
        logits=2 * d * config.vocab_size,
        recomputed=2 * config.n_layers * recomputed,
    )


def has_fast_dynamics(attention: AttentionConfig) -> bool:
    """Whether the dynamics have implementations beside the readable one."""
    return attention.dynamics.method in ("euler", "leapfrog", "semi_implicit") and attention.dynamics.force == "mlp"


def _evaluations(attention: AttentionConfig) -> tuple[int, int]:
    """How often the dynamics evaluate their network, per query (sub-)head and per key (sub-)head of a token."""
    n = attention.dynamics.n_steps
    by_method = {
        "none": (0, 0),
        "euler": (n, 0),
        "leapfrog": (n + 1, 0),
        "semi_implicit": (n, 0),
        "kick": (1, 0),
        "query_residual": (n, 0),
        "key_residual": (0, n),
        "shared_mlp": (n, n),
        "affine": (1, 1),
    }
    return by_method[attention.dynamics.method]


def _dynamics_products(config: ModelConfig, fused: bool) -> tuple[float, float]:
    """Multiply-adds of one layer's dynamics for one token: forward, and again in the backward pass."""
    attention, d = config.attention, config.d_model
    method = attention.dynamics.method
    width = head_width(d, config.n_heads, attention)
    heads, key_heads = d // width, d // width // attention.group_size
    matrix = width**2
    on_queries, on_keys = _evaluations(attention)
    if fused and has_fast_dynamics(attention):
        # W₂ acts after the sum over a group. What follows the last drift is not replayed.
        once = heads * matrix + key_heads * matrix
        unneeded_kicks = 0 if method == "semi_implicit" else 1
        return on_queries * once, on_queries * once - unneeded_kicks * key_heads * matrix
    per_evaluation = 3 * matrix if method == "affine" else _FORCE_MATRICES[attention.dynamics.force] * matrix
    return (on_queries * heads + on_keys * key_heads) * per_evaluation, 0


_FORCE_MATRICES = {"mlp": 2, "linear": 1, "potential": 4, "zero": 0}
"""The size of a force's weights, as they are multiplied with, in d × d matrices."""


@dataclass(frozen=True)
class Bytes:
    """In float32, the precision that weights are kept in; without activations, which depend on the implementation."""

    weights: int
    training_state: int
    """Weights, their gradients and AdamW's two moments."""
    cache_per_token: int
    """Evolved keys and values of all layers."""


def sizes(config: ModelConfig) -> Bytes:
    weights = FLOAT32 * count_parameters(config)
    d_kv = config.d_model // config.attention.group_size
    return Bytes(weights, 4 * weights, FLOAT32 * config.n_layers * 2 * d_kv)
