"""A survey measures a trained model over a text, one sequence and one layer at a time.

Only the queries and keys of one sequence and the maps of one layer are in memory at a time. For each sequence, one number per
measure, layer and head is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import CoupledQKError
from ..model import TransformerLM
from .measures import OF_MAPS, OF_SPECTRUM, measure_maps
from .motion import OF_ENERGY, OF_MOTION, OF_STEPS, measure_motion
from .recording import record

if TYPE_CHECKING:
    from numpy.typing import NDArray


MEASURES = {**OF_MAPS, **OF_SPECTRUM, **OF_MOTION, **OF_STEPS, **OF_ENERGY}
"""Every measure by name; the function's docstring is its definition."""


@dataclass(frozen=True)
class Survey:
    """The values of each measure for every sequence, layer and head: (N, L, H), float64."""

    values: dict[str, Tensor]

    def by_sequence(self, measure: str) -> Tensor:
        """A measure's mean over heads, (N, L)."""
        return self.values[measure].mean(-1)

    def by_layer(self, measure: str) -> list[float]:
        """A measure's mean over sequences and heads, one value per layer."""
        return self.values[measure].mean((0, 2)).tolist()

    def mean(self, measure: str) -> float:
        return float(self.values[measure].mean())

    def summary(self) -> dict[str, Any]:
        """The mean of each measure as plain values: overall, by layer, and by layer and head."""
        return {
            name: {"mean": self.mean(name), "layers": self.by_layer(name), "heads": values.mean(0).tolist()}
            for name, values in self.values.items()
        }


def survey(model: TransformerLM, batches: Iterable[Tensor], lengths: Sequence[int] | None = None) -> dict[int, Survey]:
    """Measures the model over batches of tokens (B, T), for the whole of each sequence and for its first n tokens.

    `lengths` lists the values of n; without it, only the whole sequences are measured. How q and k move does not depend on the
    context, so only the longest survey has the measures of motion.
    """
    values: dict[int, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for tokens in batches:
        for length, measured in _measure(model, tokens, sorted(set(lengths or [tokens.shape[1]]))).items():
            for name, value in measured.items():
                values[length][name].append(value)
    if not values:
        raise CoupledQKError("no batches to survey: give at least one")
    return {
        length: Survey({name: torch.cat(rows) for name, rows in measured.items()})
        for length, measured in sorted(values.items())
    }


@torch.no_grad()
def _measure(model: TransformerLM, tokens: Tensor, lengths: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """The values of each measure at each length, (B, L, H). Lengths are in increasing order."""
    if lengths[0] < 2 or lengths[-1] > tokens.shape[1]:
        raise CoupledQKError(
            f"context lengths {', '.join(map(str, lengths))}: expected at least 2 and at most the {tokens.shape[1]} tokens of "
            "a sequence"
        )
    with record(model) as tape:
        model.hidden(tokens[:, : lengths[-1]].to(model.embed.weight.device))
    layers: dict[int, list[dict[str, Tensor]]] = {length: [] for length in lengths}
    for layer in tape.layers:
        maps = layer.pattern()
        if not bool(maps.isfinite().all()):
            raise CoupledQKError(
                "the attention of the model is not finite: did the run diverge? Try another checkpoint"
            )
        for length in lengths:
            layers[length].append(measure_maps(maps[..., :length, :length]))
        layers[lengths[-1]][-1] |= measure_motion(layer)
    return {
        length: {name: torch.stack([row[name].double().cpu() for row in rows], dim=1) for name in rows[0]}
        for length, rows in layers.items()
    }


def windows(tokens: NDArray[Any], length: int, count: int) -> Iterator[Tensor]:
    """Up to `count` windows (1, length) that do not overlap, spread evenly over the text."""
    import numpy as np

    n_windows = len(tokens) // length
    if n_windows == 0:
        raise CoupledQKError(
            f"the text has {len(tokens)} tokens, but a window takes {length}: use more text or a shorter length"
        )
    for i in range(min(count, n_windows)):
        start = i * n_windows // min(count, n_windows) * length
        yield torch.from_numpy(np.array(tokens[start : start + length], np.int64))[None]


@torch.no_grad()
def attention_maps(model: TransformerLM, tokens: Tensor, layers: Sequence[int], heads: Sequence[int]) -> Tensor:
    """Attention maps of one sequence (1, T), of shape (len(layers), len(heads), T, T)."""
    with record(model) as tape:
        model.hidden(tokens.to(model.embed.weight.device))
    return torch.stack([tape.layers[layer].pattern()[0, list(heads)] for layer in layers])
