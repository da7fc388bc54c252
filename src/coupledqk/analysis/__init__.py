"""Analysis: what a trained model does. It hooks the model and changes no bit of its output."""

from .record import LayerTape, Tape, record

__all__ = ["LayerTape", "Tape", "record"]
