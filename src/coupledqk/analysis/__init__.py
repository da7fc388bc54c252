"""Analysis of what a trained model does. Recording hooks the model and does not change its output."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .measures import measure_maps, singular_values
    from .motion import measure_motion
    from .recording import LayerTape, Tape, record
    from .surveys import Survey, survey, windows

_HOME = {
    "LayerTape": "recording",
    "Survey": "surveys",
    "Tape": "recording",
    "measure_maps": "measures",
    "measure_motion": "motion",
    "record": "recording",
    "singular_values": "measures",
    "survey": "surveys",
    "windows": "surveys",
}

__all__ = [
    "LayerTape",
    "Survey",
    "Tape",
    "measure_maps",
    "measure_motion",
    "record",
    "singular_values",
    "survey",
    "windows",
]


def __getattr__(name: str) -> Any:
    """Loads torch only when it is needed, so that reports can use the plotting style without it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
