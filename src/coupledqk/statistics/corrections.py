"""Several tests at once: Holm's method, and a test of how often runs fail."""

import math
from collections.abc import Sequence

from .estimates import LEVEL


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted by Holm's method: those at most `level` may be called findings, with a chance of `level` that any is false."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(_ascending(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def holm_levels(p_values: Sequence[float], level: float = LEVEL) -> list[float]:
    """The level at which Holm's method tests each: p ≤ its level exactly where its adjusted p ≤ `level`.

    The smallest p of m is tested at level/m, the next at level/(m − 1) and so on; all after the first failure share its level.
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
    """Fisher's exact test, two-sided by doubling, that failures are as likely among ours as among theirs.

    Where runs are paired and failures depend on the seed, the test is conservative.
    """
    total, everything = ours + theirs, n_ours + n_theirs
    ways = [math.comb(n_ours, k) * math.comb(n_theirs, total - k) for k in range(total + 1)]
    tail = min(sum(ways[ours:]), sum(ways[: ours + 1])) / math.comb(everything, total)
    return min(1.0, 2 * tail)


def _ascending(p_values: Sequence[float]) -> list[int]:
    return sorted(range(len(p_values)), key=p_values.__getitem__)
