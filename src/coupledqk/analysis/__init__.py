"""Analysis of trained models: recording, measures and interventions."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .interventions import LossEffects, loss_effects, without_dynamics, without_head
    from .measures import measure_maps, singular_values
    from .motion import measure_motion
    from .recording import LayerTape, Tape, record
    from .surveys import Survey, survey, windows

_HOME = {
    "LayerTape": "recording",
    "LossEffects": "interventions",
    "Survey": "surveys",
    "Tape": "recording",
    "loss_effects": "interventions",
    "measure_maps": "measures",
    "measure_motion": "motion",
    "record": "recording",
    "singular_values": "measures",
    "survey": "surveys",
    "windows": "surveys",
    "without_dynamics": "interventions",
    "without_head": "interventions",
}

__all__ = [
    "LayerTape",
    "LossEffects",
    "Survey",
    "Tape",
    "loss_effects",
    "measure_maps",
    "measure_motion",
    "record",
    "singular_values",
    "survey",
    "windows",
    "without_dynamics",
    "without_head",
]


def __getattr__(name: str) -> Any:
    """Loads torch only when it is needed, so that reports can use the plotting style without it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
