"""Scoring: computes the attention output from evolved q and k and from v. Each scoring has a fast path and a plain one
that also returns the weights."""

from .differential import Differential
from .differential_v2 import DifferentialV2
from .gated import Gated
from .record import Scoring
from .register import register_scoring
from .scorings import SCORINGS, build_scoring
from .sink import Sink
from .softmax import Softmax, attend, attention_weights

__all__ = [
    "SCORINGS",
    "Differential",
    "DifferentialV2",
    "Gated",
    "Scoring",
    "Sink",
    "Softmax",
    "attend",
    "attention_weights",
    "build_scoring",
    "register_scoring",
]
