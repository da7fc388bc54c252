"""Multiple testing by Holm's method, and a test for rates of failed runs."""

import math
from collections.abc import Sequence

from .estimates import LEVEL


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: rejecting those of at most `level` has a family-wise error rate of at most
    `level`."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(_ascending(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def holm_levels(p_values: Sequence[float], level: float = LEVEL) -> list[float]:
    """The level at which Holm's method tests each p-value: p is at most this level if and only if its adjusted value is at
    most `level`.

    The smallest of m p-values is tested at level/m, the next at level/(m − 1) and so on. All p-values after the first that is
    not significant are tested at the level of that one.
    """
    levels, share = [level] * len(p_values), level
    failed = False
    for rank, place in enumerate(_ascending(p_values)):
        if not failed:
            share = level / (len(p_values) - rank)
            failed = p_values[place] > share
        levels[place] = share
    return levels


def failures_p(ours: int, n_ours: int, theirs: int, n_theirs: int) -> float:
    """p-value of Fisher's exact test, two-sided by doubling, of the hypothesis that both groups fail at the same rate.

    The test is conservative if runs are paired and failures depend on the seed.
    """
    total, everything = ours + theirs, n_ours + n_theirs
    ways = [math.comb(n_ours, k) * math.comb(n_theirs, total - k) for k in range(total + 1)]
    tail = min(sum(ways[ours:]), sum(ways[: ours + 1])) / math.comb(everything, total)
    return min(1.0, 2 * tail)


def _ascending(p_values: Sequence[float]) -> list[int]:
    return sorted(range(len(p_values)), key=p_values.__getitem__)
