"""A group-sequential test, which is repeated after every new pair of seeds up to a maximum number fixed in advance.

Testing at 5% after every pair would have an error rate far above 5%. Here the test after n of at most N pairs has the level
c · (n/N)², and c is chosen such that all tests together have the desired error rate. Stopping early requires strong evidence,
and the last test has only slightly less power than a single test with N pairs. The intervals at these levels contain the effect
simultaneously at all looks with the desired confidence, so one may stop at any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..schema import require
from .estimates import LEVEL, POWER, scipy_special
from .power import detectable_effect

DRAWS = 100_000


@dataclass(frozen=True)
class SequentialTest:
    """Two-sided paired t-tests after `first`, `first` + 1, ..., `last` pairs with one overall error rate."""

    last: int
    """The largest number of pairs."""
    first: int = 4
    """The number of pairs before the first test."""
    level: float = LEVEL
    prior_df: float = 0.0
    """Degrees of freedom that moderation adds to each test."""

    def __post_init__(self) -> None:
        require(2 <= self.first <= self.last, "first", self.first, f"2 to {self.last}, the largest number of pairs")
        require(0 < self.level < 1, "level", self.level, "between 0 and 1")

    def nominal_level(self, n: int) -> float:
        """The level of the test after `n` pairs."""
        require(self.first <= n <= self.last, "n", n, f"{self.first} to {self.last} pairs")
        return _scale(self.first, self.last, self.level, self.prior_df) * (n / self.last) ** 2

    def detectable_effect(self, sd: float, power: float = POWER) -> float:
        """The effect that the last test detects with this power. Earlier tests add power, so the overall power is at least as
        high."""
        return detectable_effect(self.last, sd, self.nominal_level(self.last), power, self.prior_df)


@cache
def _scale(first: int, last: int, level: float, prior_df: float) -> float:
    """The factor c: the quantile of the smallest p/(n/N)² over all looks if there is no effect.

    It does not depend on the spread. It is simulated with a fixed seed, which makes the error rate accurate to about 0.1
    percentage points.
    """
    import numpy as np

    return float(np.quantile(smallest_weighted_p(first, last, prior_df, DRAWS, seed=0), level))


def smallest_weighted_p(first: int, last: int, prior_df: float, draws: int, seed: int) -> Any:
    """The smallest p/(n/N)² over all looks, for each of `draws` simulated sequences of pairs without an effect."""
    import numpy as np

    special, random = scipy_special(), np.random.default_rng(seed)
    # With a prior, the true variance is drawn from it; it is 1 in units of the prior if the prior's df is infinite.
    variance = prior_df / random.chisquare(prior_df, draws) if 0 < prior_df < np.inf else np.ones(draws)
    total, squares, least = np.zeros(draws), np.zeros(draws), np.full(draws, np.inf)
    for n in range(1, last + 1):
        x = random.standard_normal(draws) * np.sqrt(variance)
        total += x
        squares += x * x
        if n < first:
            continue
        within = squares - total**2 / n
        if np.isinf(prior_df):
            p = 2 * special.ndtr(-np.abs(total) / np.sqrt(n))
        else:
            df = n - 1 + prior_df
            p = 2 * special.stdtr(df, -np.abs(total) / np.sqrt(n * (within + prior_df) / df))
        np.minimum(least, p / (n / last) ** 2, out=least)
    return least
