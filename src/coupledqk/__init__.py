"""Coupled query-key dynamics for attention: the layer, the models and the laboratory."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .attention import Attention
    from .config import AttentionConfig, DynamicsConfig, ModelConfig, ScoringConfig
    from .dynamics import Method, evolve, register_dynamics
    from .errors import CoupledQKError
    from .hf import couple, load_coupling, save_coupling, uncouple
    from .lab.compare import compare
    from .lab.laboratory import run_experiment
    from .layers import KVCache
    from .model import TransformerLM
    from .plugins import load_plugin
    from .recipes import recipe
    from .rope import rope_at
    from .runs import Run, train
    from .samples import sample
    from .scoring import register_scoring
    from .values import FirstValues
    from .variants import PAPER_VARIANTS, PRESETS, VARIANTS, preset, register_variant, variant

# Names are imported on first use, so that --help does not wait for torch.
_HOME = {
    "Attention": "attention",
    "AttentionConfig": "config",
    "CoupledQKError": "errors",
    "DynamicsConfig": "config",
    "FirstValues": "values",
    "KVCache": "layers",
    "Method": "dynamics",
    "ModelConfig": "config",
    "PAPER_VARIANTS": "variants",
    "PRESETS": "variants",
    "Run": "runs",
    "ScoringConfig": "config",
    "TransformerLM": "model",
    "VARIANTS": "variants",
    "compare": "lab.compare",
    "couple": "hf",
    "evolve": "dynamics",
    "load_coupling": "hf",
    "load_plugin": "plugins",
    "preset": "variants",
    "recipe": "recipes",
    "register_dynamics": "dynamics",
    "register_scoring": "scoring",
    "register_variant": "variants",
    "rope_at": "rope",
    "run_experiment": "lab.laboratory",
    "sample": "samples",
    "save_coupling": "hf",
    "train": "runs",
    "uncouple": "hf",
    "variant": "variants",
}

__all__ = [
    "PAPER_VARIANTS",
    "PRESETS",
    "VARIANTS",
    "Attention",
    "AttentionConfig",
    "CoupledQKError",
    "DynamicsConfig",
    "FirstValues",
    "KVCache",
    "Method",
    "ModelConfig",
    "Run",
    "ScoringConfig",
    "TransformerLM",
    "compare",
    "couple",
    "evolve",
    "load_coupling",
    "load_plugin",
    "preset",
    "recipe",
    "register_dynamics",
    "register_scoring",
    "register_variant",
    "rope_at",
    "run_experiment",
    "sample",
    "save_coupling",
    "train",
    "uncouple",
    "variant",
]


def __getattr__(name: str) -> Any:
    if name == "analysis":
        return importlib.import_module(".analysis", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
