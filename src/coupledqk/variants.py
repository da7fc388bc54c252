"""The attention variants and model sizes by name. Torch-free."""

import dataclasses
from typing import Any

from .config import AttentionConfig, DynamicsConfig, ModelConfig, ScoringConfig
from .errors import unknown
from .plugins import add
from .schema import change

_NONE = DynamicsConfig()
_EULER = DynamicsConfig(method="euler")
_LEAPFROG = DynamicsConfig(method="leapfrog")
_AFFINE = DynamicsConfig(method="affine")
_DIFFERENTIAL = ScoringConfig(kind="differential")
_DIFFERENTIAL_V2 = ScoringConfig(kind="differential_v2")
_GATED = ScoringConfig(kind="gated")
_SINK = ScoringConfig(kind="sink")

PAPER_VARIANTS: dict[str, AttentionConfig] = {
    "standard": AttentionConfig(_NONE),
    "gqa": AttentionConfig(_NONE, group_size=4),
    "diff": AttentionConfig(_NONE, _DIFFERENTIAL),
    # q + f(q): a residual on the query, with a single step of the fixed size 1
    "mlp_only": AttentionConfig(
        DynamicsConfig(method="query_residual", n_steps=1, step_size=1.0, learn_step_size=False)
    ),
    "euler": AttentionConfig(_EULER),
    "hamiltonian": AttentionConfig(_LEAPFROG),
}
"""The six attention variants of the paper's structural ablation; `hamiltonian` is the paper's "Coupled QK"."""

VARIANTS: dict[str, AttentionConfig] = {
    **PAPER_VARIANTS,
    "euler_diff": AttentionConfig(_EULER, _DIFFERENTIAL),
    "hamiltonian_diff": AttentionConfig(_LEAPFROG, _DIFFERENTIAL),
    "euler_gqa": AttentionConfig(_EULER, group_size=4),
    "hamiltonian_gqa": AttentionConfig(_LEAPFROG, group_size=4),
    "semi_implicit": AttentionConfig(DynamicsConfig(method="semi_implicit")),
    "potential": AttentionConfig(DynamicsConfig(method="leapfrog", force="potential")),
    "linear": AttentionConfig(DynamicsConfig(method="leapfrog", force="linear")),
    "drift": AttentionConfig(DynamicsConfig(method="leapfrog", force="zero")),
    "kick": AttentionConfig(DynamicsConfig(method="kick")),
    "query_residual": AttentionConfig(DynamicsConfig(method="query_residual")),
    "key_residual": AttentionConfig(DynamicsConfig(method="key_residual")),
    "shared_mlp": AttentionConfig(DynamicsConfig(method="shared_mlp")),
    "affine": AttentionConfig(_AFFINE),
    "affine_diff": AttentionConfig(_AFFINE, _DIFFERENTIAL),
    "diff_v2": AttentionConfig(_NONE, _DIFFERENTIAL_V2),
    "hamiltonian_diff_v2": AttentionConfig(_LEAPFROG, _DIFFERENTIAL_V2),
    "gated": AttentionConfig(_NONE, _GATED),
    "hamiltonian_gated": AttentionConfig(_LEAPFROG, _GATED),
    "sink": AttentionConfig(_NONE, _SINK),
    "hamiltonian_sink": AttentionConfig(_LEAPFROG, _SINK),
    "value_residual": AttentionConfig(_NONE, value_residual=True),
    "hamiltonian_value_residual": AttentionConfig(_LEAPFROG, value_residual=True),
}
"""All attention variants: the paper's, their combinations, further controls, and other published mechanisms."""

PRESETS: dict[str, ModelConfig] = {
    "mini": ModelConfig(d_model=64, n_heads=4, n_layers=2, d_ff=128),
    "nano": ModelConfig(d_model=128, n_heads=4, n_layers=4, d_ff=512),
    "tiny": ModelConfig(d_model=256, n_heads=4, n_layers=6, d_ff=1024),
    "small": ModelConfig(d_model=512, n_heads=8, n_layers=8, d_ff=2048),
    "medium": ModelConfig(d_model=768, n_heads=12, n_layers=12, d_ff=3072),
    "large": ModelConfig(d_model=1024, n_heads=16, n_layers=24, d_ff=4096),
}
"""Model sizes: the paper's four, and two for laptops (`mini` for grids of many runs, `nano` for a single run)."""


def variant(name: str, **settings: Any) -> AttentionConfig:
    """The attention variant with this name, with some settings changed: `variant("euler", n_steps=1)`."""
    if name not in VARIANTS:
        raise unknown("variant", name, VARIANTS)
    return change(VARIANTS[name], settings)


def register_variant(name: str, base: str | AttentionConfig = "standard", **settings: Any) -> AttentionConfig:
    """Adds a variant: an existing one, or any configuration, with some settings changed.

    `register_variant("my_variant", method="my_dynamics", n_steps=2)` makes it available to models, recipes and commands.
    """
    attention = change(variant(base) if isinstance(base, str) else base, settings)
    add(VARIANTS, name, attention, "variant")
    return attention


def preset(name: str, attention: str | AttentionConfig = "standard", **settings: Any) -> ModelConfig:
    """A model configuration by size and attention variant: `preset("small", "hamiltonian", n_positions=512)`."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    if isinstance(attention, str):
        attention = variant(attention)
    return change(dataclasses.replace(PRESETS[name], attention=attention), settings)
