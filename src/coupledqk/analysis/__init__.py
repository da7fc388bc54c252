"""Analysis: what a trained model does. It hooks the model and changes no bit of its output."""

from .measures import measure_maps, singular_values
from .motion import measure_motion
from .record import LayerTape, Tape, record
from .survey import Survey, survey, windows

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
