"""What a language model is held against: n-gram models of the same text, and itself with little context. Torch-free.

A model that is no better than a table of bigrams, or no better late in its window than early, makes no use of its context:
what is measured on it says nothing about attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .schema import decode

ORDERS = (1, 2, 3, 5)
"""Of the n-gram models."""


@dataclass(frozen=True)
class Baseline:
    """An n-gram model with interpolated Kneser-Ney smoothing of the training tokens, measured on the validation tokens."""

    order: int
    perplexity: float
    bits_per_byte: float
    train_tokens: int
    """Number of training tokens that were counted."""

    @property
    def name(self) -> str:
        return {1: "unigram", 2: "bigram", 3: "trigram"}.get(self.order, f"{self.order}-gram")


@dataclass(frozen=True)
class PositionLoss:
    """The mean loss of targets that a model predicts from `first` to `last` tokens of context."""

    first: int
    last: int
    tokens: int
    """Number of targets."""
    loss: float
    """In nats per token."""


def read_baselines(result: Mapping[str, Any]) -> tuple[Baseline, ...]:
    """Those in a run's result.json; none for other tasks and for runs made before there were any."""
    return decode(tuple[Baseline, ...], result.get("baselines", ()), "baselines")


def read_position_losses(result: Mapping[str, Any]) -> tuple[PositionLoss, ...]:
    """Those in a run's result.json, by growing context; none for other tasks and for runs made before there were any."""
    return decode(tuple[PositionLoss, ...], result.get("position_loss", ()), "position_loss")


def beaten(bits_per_byte: float, baselines: Sequence[Baseline]) -> Baseline | None:
    """The highest order that a model is better than, as it is than all lower ones; None if it is not better than unigrams."""
    best = None
    for baseline in sorted(baselines, key=lambda baseline: baseline.order):
        if bits_per_byte >= baseline.bits_per_byte:
            break
        best = baseline
    return best


def objection(bits_per_byte: float, baselines: Sequence[Baseline]) -> str | None:
    """Why a model allows no conclusion about attention; None if it is better than bigrams, or if there are no baselines."""
    bigram = next((baseline for baseline in baselines if baseline.order == 2), None)
    if bigram is None or bits_per_byte < bigram.bits_per_byte:
        return None
    return (
        f"{bits_per_byte:.3f} bits per byte is not below the {bigram.bits_per_byte:.3f} of a bigram model of the same text: no "
        "conclusion about attention is possible"
    )


EARLY = (2, 8)
"""Tokens of context of the targets that count as early in the window; late are those with more than half of the window."""


def context_gain(losses: Sequence[PositionLoss]) -> float | None:
    """The loss late in the window minus the loss early in it, in nats: negative where context helps. None for short windows."""
    early = [part for part in losses if EARLY[0] <= part.first and part.last <= EARLY[1]]
    late = losses[-1] if losses else None
    if not early or late is None or late.first <= EARLY[1]:
        return None
    return late.loss - sum(part.loss * part.tokens for part in early) / sum(part.tokens for part in early)
