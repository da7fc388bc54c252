"""The cost of a model, from its configuration alone: parameters, floating-point operations and bytes."""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from .config import AttentionConfig, DynamicsConfig, ModelConfig, head_width
from .dynamics import FORCES, METHODS, build_dynamics
from .dynamics.fused import rebuilds_steps
from .dynamics.hidden import count_products
from .dynamics.operators import SHARE
from .model import TransformerLM
from .registry import SCORINGS as SCORING_ENTRIES
from .scoring import SCORINGS

FLOAT32 = 4


def count_parameters(config: ModelConfig) -> int:
    """The number of parameters, counted on the model itself, built on the meta device without allocating memory."""
    with torch.device("meta"):
        model = TransformerLM(config)
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the matrix products per token of a sequence, two for each multiply-add.

    Other operations (norms, softmax, SiLU, embedding look-ups, the optimizer) and recomputation inside an attention kernel are
    not counted. A ratio of these counts is therefore a reference for a measured speed, not a bound.
    """

    projections: float
    """Projections of attention: q, k, v, the output, and further projections of the scoring."""
    dynamics: float
    scores: float
    """q kᵀ and the weighted sum of v, over the keys that a query attends to."""
    ffn: float
    logits: float
    recomputed: float
    """Operations that the backward pass of the fused dynamics repeats to reconstruct or recompute the steps."""

    @property
    def forward(self) -> float:
        return self.projections + self.dynamics + self.scores + self.ffn + self.logits

    @property
    def training(self) -> float:
        """Operations of the forward and backward pass. Each matrix product has two products in its gradient."""
        return 3 * self.forward + self.recomputed


def flops(config: ModelConfig, seq_len: int, fused: bool = False) -> Flops:
    """The floating-point operations of a model for sequences of length `seq_len`.

    With `fused`, the dynamics are counted as `dynamics/fused.py` computes them, if it supports them; otherwise as the reference
    implementation does.
    """
    attention, d = config.attention, config.d_model
    heads, key_heads, width = _heads(config)
    keys = (seq_len + 1) / 2 if attention.causal else seq_len
    scoring = SCORINGS[attention.scoring.kind]
    forward, recomputed = _dynamics_products(config, fused)
    return Flops(
        projections=2 * config.n_layers * d * ((heads + 2 * key_heads) * width + d + scoring.gates * config.n_heads),
        dynamics=2 * config.n_layers * forward,
        scores=2 * config.n_layers * config.n_heads * scoring.products(keys, width),
        ffn=2 * config.n_layers * 3 * d * config.d_ff,
        logits=2 * d * config.vocab_size,
        recomputed=2 * config.n_layers * recomputed,
    )


def has_fast_dynamics(attention: AttentionConfig) -> bool:
    """Whether the dynamics have an implementation other than the reference."""
    return METHODS[attention.dynamics.method].moves is not None and attention.dynamics.force == "mlp"


def _dynamics_products(config: ModelConfig, fused: bool) -> tuple[float, float]:
    """Multiply-adds of one layer's dynamics per token: in the forward pass, and recomputed in the backward pass."""
    attention = config.attention
    method = METHODS[attention.dynamics.method]
    heads, key_heads, width = _heads(config)
    if fused and has_fast_dynamics(attention):
        assert method.moves is not None
        moves = method.moves(attention.dynamics.n_steps)
        if not rebuilds_steps(moves, attention.dynamics.n_steps):
            on_queries, on_keys, unneeded = count_products(moves)
            forward = (on_queries * heads + on_keys * key_heads) * width**2
            return forward, forward - unneeded * key_heads * width**2
        # W₂ acts after the sum over a group. Kicks before the first drift are not undone.
        kicks, unneeded = (sum(move in SHARE for move in part) for part in (moves, moves[: moves.index("drift")]))
        forward = (moves.count("force") * heads + kicks * key_heads) * width**2
        return forward, forward - unneeded * key_heads * width**2
    if method.evaluations is None:
        return _counted_products(attention.dynamics, heads, key_heads, width), 0
    on_queries, on_keys = method.evaluations(attention.dynamics.n_steps)
    matrices = FORCES[attention.dynamics.force].matrices if method.matrices is None else method.matrices
    return (on_queries * heads + on_keys * key_heads) * matrices * width**2, 0


def _heads(config: ModelConfig) -> tuple[int, int, int]:
    """The number of queries per token, the number of keys per token, and their width."""
    attention, width = config.attention, head_width(config.d_model, config.n_heads, config.attention)
    heads = config.d_model // width
    return heads * SCORING_ENTRIES[attention.scoring.kind].queries, heads // attention.group_size, width


def _counted_products(dynamics: DynamicsConfig, heads: int, key_heads: int, width: int) -> float:
    """Multiply-adds per token of a method whose record does not contain them, as counted by PyTorch."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        module = build_dynamics(dynamics, width, key_heads)
        module(torch.empty(1, 1, heads, width), torch.empty(1, 1, key_heads, width))
    return counter.get_total_flops() / 2


@dataclass(frozen=True)
class Bytes:
    """Memory in bytes, in float32, the dtype of the weights. Activations depend on the implementation and are not included."""

    weights: int
    training_state: int
    """Bytes of the weights, their gradients and AdamW's two moments."""
    cache_per_token: int
    """Bytes of the KV cache per token: evolved keys and values of all layers."""


def sizes(config: ModelConfig) -> Bytes:
    weights = FLOAT32 * count_parameters(config)
    d_kv = config.d_model // config.attention.group_size
    return Bytes(weights, 4 * weights, FLOAT32 * config.n_layers * 2 * d_kv)
