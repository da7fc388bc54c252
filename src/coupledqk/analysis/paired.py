"""Two runs on the same text, compared sequence by sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..statistics import student_quantile
from .surveys import Survey

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95


def differences(ours: Survey, theirs: Survey) -> dict[str, dict[str, Any]]:
    """The difference ours − theirs of every measure that both have, by layer and for the mean over layers.

    {"layers": {"difference": [...], "margin": [...]}, "mean": {"difference": x, "margin": y}}
    """
    import numpy as np

    found = {}
    for name in ours.values.keys() & theirs.values.keys():
        by_layer = (ours.by_sequence(name) - theirs.by_sequence(name)).numpy()  # (N, L)
        layers, mean = paired(by_layer), paired(by_layer.mean(1))
        found[name] = {
            "layers": {key: value.tolist() for key, value in layers.items()},
            "mean": {key: np.asarray(value).item() for key, value in mean.items()},
        }
    return {name: found[name] for name in ours.values if name in found}


def paired(by_sequence: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The mean difference over sequences, axis 0, and the margin of its confidence interval: mean ± margin.

    The interval is Student's, margin = t · s/√N. It describes how much the difference between these two trained models varies
    with the sample of text, and does not account for other seeds. A single sequence has no interval.
    """
    import numpy as np

    n = len(by_sequence)
    difference = by_sequence.mean(0)
    if n < 2:
        return {"difference": difference, "margin": np.full_like(difference, np.nan)}
    margin = student_quantile((1 + CONFIDENCE) / 2, n - 1) * by_sequence.std(0, ddof=1) / math.sqrt(n)
    return {"difference": difference, "margin": margin}
