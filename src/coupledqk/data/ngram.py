"""n-gram language models as baselines for the text that a model is trained on.

Interpolated Kneser-Ney smoothing (Chen & Goodman 1999) with one discount D. An n-gram of context h and token w has

    p(w | h) = max(c(hw) − D, 0) / c(h·) + D · N(h·) / c(h·) · p(w | h without its first token)

where c counts occurrences in the highest order and distinct predecessors in the lower ones, c(h·) is its sum over all w, and
N(h·) is the number of w with c(hw) > 0. For an unseen context the shorter context is used, and below the unigrams the uniform
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..baselines import ORDERS, Baseline, read_baselines
from ..errors import CoupledQKError
from ..files import digest
from ..sealed import read_sealed_json, write_json
from .cache import cache_folder
from .shards import TokenizedCorpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1
"""Version number, part of every cached name. It is increased when the same tokens would give different values."""

DISCOUNT = 0.75

MAX_TOKENS = 20_000_000
"""Maximum number of training tokens that are counted, which limits memory and time."""


def ngram_baselines(corpus: TokenizedCorpus) -> tuple[Baseline, ...]:
    """n-gram models of the corpus' training tokens, evaluated on its validation tokens. They are cached for each sample.

    As for the model, every validation token but the first is a target. Its context consists of all preceding tokens.
    """
    name = digest(VERSION, corpus.info.sample_hash, corpus.tokenizer.to_json(), ORDERS, DISCOUNT, MAX_TOKENS)
    path = cache_folder() / "baselines" / f"{name[:32]}.json"
    if path.is_file():
        try:
            return read_baselines(read_sealed_json(path, "it is written again"))
        except CoupledQKError:
            pass  # a damaged file is written again
    found = _measure(corpus)
    write_json(path, {"baselines": [asdict(baseline) for baseline in found]})
    return found


def _measure(corpus: TokenizedCorpus) -> tuple[Baseline, ...]:
    if len(corpus.train) < 1 or len(corpus.valid) < 2:
        raise CoupledQKError(
            f"{corpus.info.corpus} has {len(corpus.train)} training and {len(corpus.valid)} validation tokens: expected at "
            "least 1 and 2; use more text"
        )
    model = KneserNey(corpus.train[:MAX_TOKENS], corpus.tokenizer.vocab_size, max(ORDERS))
    found = []
    for order, probabilities in model.probabilities(corpus.valid):
        if order in ORDERS:
            losses = -np.log(probabilities[1:])
            bits = float(losses.sum()) / math.log(2)
            per_byte = bits / corpus.info.splits["valid"].bytes
            found.append(Baseline(order, float(np.exp(losses.mean())), per_byte, model.n_tokens))
    return tuple(found)


@dataclass(frozen=True)
class _Counts:
    """Counts of n-grams, which are numbered from 0, and of their contexts, the (n − 1)-grams. Unseen ones have the number
    −1, the last position of each array, which contains 0."""

    counts: NDArray[np.int64]
    """Count of each n-gram."""
    totals: NDArray[np.int64]
    """Sum of the counts of each context's n-grams."""
    kinds: NDArray[np.int64]
    """Number of n-grams of each context with a positive count."""

    @classmethod
    def of(cls, counts: NDArray[Any], contexts: NDArray[Any], n_contexts: int) -> _Counts:
        totals = np.bincount(contexts, counts, n_contexts + 1).astype(np.int64)
        return cls(np.append(counts, 0), totals, np.bincount(contexts[counts > 0], minlength=n_contexts + 1))

    def smooth(self, ngrams: NDArray[Any], contexts: NDArray[Any], shorter: NDArray[np.float64]) -> NDArray[np.float64]:
        """p(w | h), given the probabilities with the shorter contexts."""
        totals = self.totals[contexts]
        discounted = np.maximum(self.counts[ngrams] - DISCOUNT, 0) + DISCOUNT * self.kinds[contexts] * shorter
        return np.where(totals > 0, discounted / np.maximum(totals, 1), shorter)


@dataclass(frozen=True)
class _Level:
    """The n-grams of one order, sorted by their keys: the number of the context times the vocabulary size, plus the token."""

    keys: NDArray[np.int64]
    occurrences: _Counts
    predecessors: _Counts | None
    """Counts of distinct predecessors; None in the highest order, which does not need them."""

    def find(self, contexts: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of n-grams; −1 for unseen ones."""
        places = np.searchsorted(self.keys, keys)
        known = (contexts >= 0) & (np.append(self.keys, -1)[places] == keys)
        return np.where(known, places, -1)


class KneserNey:
    """Kneser-Ney models of all orders up to `order`."""

    def __init__(self, tokens: NDArray[Any], vocab_size: int, order: int) -> None:
        self.n_tokens, self.vocab_size = len(tokens), vocab_size
        tokens = np.asarray(tokens, np.int64)
        keys, counts = np.arange(vocab_size), np.bincount(tokens, minlength=vocab_size)
        contexts, n_contexts = np.zeros_like(keys), 1
        ngrams = tokens  # the number of the n-gram that begins at each token
        self.levels: list[_Level] = []
        for n in range(1, order):
            longer = _number(ngrams[: max(0, len(tokens) - n)] * vocab_size + tokens[n:])
            # the n-gram at the end of a longer one begins one token later
            predecessors = np.bincount(ngrams[longer.places + 1], minlength=len(keys))
            of_contexts = contexts, n_contexts
            self.levels.append(_Level(keys, _Counts.of(counts, *of_contexts), _Counts.of(predecessors, *of_contexts)))
            contexts, n_contexts = longer.keys // vocab_size, len(keys)
            keys, counts, ngrams = longer.keys, longer.counts, longer.numbers
        self.levels.append(_Level(keys, _Counts.of(counts, contexts, n_contexts), None))

    def probabilities(self, tokens: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """The probability of every token given the preceding ones, for each order."""
        tokens = np.asarray(tokens, np.int64)
        shorter = np.full(len(tokens), 1 / self.vocab_size)
        contexts = np.zeros(len(tokens), np.int64)  # the number of the context that begins at each token
        for order, level in enumerate(self.levels, 1):
            first = order - 1  # the first token with a complete context
            contexts = contexts[: max(0, len(tokens) - first)]
            ngrams = level.find(contexts, contexts * self.vocab_size + tokens[first:])
            smoothed = level.occurrences.smooth(ngrams, contexts, shorter[first:])
            yield order, np.append(shorter[:first], smoothed)
            if level.predecessors is not None:
                smoothed = level.predecessors.smooth(ngrams, contexts, shorter[first:])
                shorter = np.append(shorter[:first], smoothed)
            contexts = ngrams


@dataclass(frozen=True)
class _Numbered:
    keys: NDArray[np.int64]
    """Sorted unique keys."""
    counts: NDArray[np.int64]
    places: NDArray[np.int64]
    """Index of one occurrence of each key."""
    numbers: NDArray[np.int64]
    """Index of each occurrence's key among the sorted ones."""


def _number(keys: NDArray[np.int64]) -> _Numbered:
    """Like np.unique, but faster, because the sort need not be stable."""
    order = np.argsort(keys)
    ordered = keys[order]
    is_new = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    starts = np.flatnonzero(is_new)
    numbers = np.empty_like(order)
    numbers[order] = np.cumsum(is_new) - 1
    return _Numbered(ordered[starts], np.diff(np.append(starts, len(keys))), order[starts], numbers)
