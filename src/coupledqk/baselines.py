"""Baselines of a language model: n-gram models of the same text, and the model itself with little context. Torch-free.

A model that is no better than a bigram model, or no better late in its window than early, does not use its context.
Measurements on such a model allow no conclusion about attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .schema import decode

ORDERS = (1, 2, 3, 5)
"""Orders n of the n-gram models."""


@dataclass(frozen=True)
class Baseline:
    """The validation loss of an n-gram model with interpolated Kneser-Ney smoothing, estimated from the training tokens."""

    order: int
    perplexity: float
    bits_per_byte: float
    train_tokens: int
    """Number of training tokens the model was estimated from."""

    @property
    def name(self) -> str:
        return {1: "unigram", 2: "bigram", 3: "trigram"}.get(self.order, f"{self.order}-gram")


@dataclass(frozen=True)
class PositionLoss:
    """The mean loss of targets that are predicted from `first` to `last` tokens of context."""

    first: int
    last: int
    tokens: int
    """Number of targets."""
    loss: float
    """Mean loss in nats per token."""


def read_baselines(result: Mapping[str, Any]) -> tuple[Baseline, ...]:
    """The baselines in a run's result.json; empty for other tasks and for runs made before baselines were recorded."""
    return decode(tuple[Baseline, ...], result.get("baselines", ()), "baselines")


def read_position_losses(result: Mapping[str, Any]) -> tuple[PositionLoss, ...]:
    """The position losses in a run's result.json, in the order of increasing context; empty for other tasks and for runs made
    before position losses were recorded."""
    return decode(tuple[PositionLoss, ...], result.get("position_loss", ()), "position_loss")


def objection(bits_per_byte: float, baselines: Sequence[Baseline]) -> str | None:
    """The reason why a model allows no conclusion about attention; None if it is better than the bigram model or if there
    are no baselines."""
    bigram = next((baseline for baseline in baselines if baseline.order == 2), None)
    if bigram is None or bits_per_byte < bigram.bits_per_byte:
        return None
    return (
        f"{bits_per_byte:.3f} bits per byte is not below the {bigram.bits_per_byte:.3f} of a bigram model of the same text: no "
        "conclusion about attention is possible"
    )


EARLY = (2, 8)
"""Range of context lengths, in tokens, that count as early in the window. More than half of the window counts as late."""


def context_gain(losses: Sequence[PositionLoss]) -> float | None:
    """The loss late in the window minus the loss early in it, in nats: negative if context helps. None for short windows."""
    early = [part for part in losses if EARLY[0] <= part.first and part.last <= EARLY[1]]
    late = losses[-1] if losses else None
    if not early or late is None or late.first <= EARLY[1]:
        return None
    return late.loss - sum(part.loss * part.tokens for part in early) / sum(part.tokens for part in early)
