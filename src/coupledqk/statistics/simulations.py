"""Simulated experiments that check coverage, error rates and power of the statistical procedures.

The tests run short simulations, `benchmarks/verdicts.py` long ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .estimates import Estimate, student_quantile
from .moderation import Prior, estimate_prior
from .sequential import SequentialTest


@dataclass(frozen=True)
class Table:
    """A table of attention variants that are all compared with one baseline, paired by seed."""

    n_seeds: int
    n_arms: int
    variance_df: float = math.inf
    """Degrees of freedom of the scaled inverse chi-squared distribution of the arms' variances; infinite if they are equal."""
    baseline_noise: float = 1.0
    """Standard deviation of the baseline's runs, in units in which that of the arms is about 1."""

    def draw(self, random: Any) -> Any:
        """Draws paired differences without an effect, of shape (seeds, arms)."""
        scale = 1.0
        if math.isfinite(self.variance_df):
            scale = (self.variance_df / random.chisquare(self.variance_df, self.n_arms)) ** 0.5
        arms = random.standard_normal((self.n_seeds, self.n_arms)) * scale
        return arms - self.baseline_noise * random.standard_normal((self.n_seeds, 1))


@dataclass(frozen=True)
class Coverage:
    """Coverage and mean length of 95% intervals, with and without moderation."""

    plain: float
    moderated: float
    length: float
    """Root-mean-square length of moderated intervals relative to plain ones."""


def table_coverage(table: Table, trials: int, seed: int = 0) -> Coverage:
    """Coverage over all arms of `trials` tables, with variances moderated by a prior estimated from the table itself."""
    import numpy as np

    random, found = np.random.default_rng(seed), []
    for _ in range(trials):
        differences = table.draw(random)
        prior = estimate_prior(differences.var(0, ddof=1), [table.n_seeds - 1] * table.n_arms)
        assert prior is not None
        found += [_margins(arm, prior) for arm in differences.T]
    return _coverage(found)


def prior_coverage(n_seeds: int, prior: Prior, trials: int, seed: int = 0) -> Coverage:
    """Coverage of single comparisons whose variances are drawn from the prior that moderates them."""
    import numpy as np

    random = np.random.default_rng(seed)
    sd = prior.sd * np.sqrt(prior.df / random.chisquare(prior.df, trials))
    differences = random.standard_normal((trials, n_seeds)) * sd[:, None]
    return _coverage([_margins(each, prior) for each in differences])


def _margins(differences: Any, prior: Prior) -> tuple[float, float, float]:
    """The error of the mean, and the half-widths of the plain and the moderated 95% interval."""
    n, mean = len(differences), float(differences.mean())
    plain = Estimate(mean, float(differences.std(ddof=1)) / math.sqrt(n), n - 1)
    ours, moderated = (estimate.interval()[1] - mean for estimate in (plain, prior.moderate(plain)))
    return abs(mean), ours, moderated


def _coverage(found: list[tuple[float, float, float]]) -> Coverage:
    import numpy as np

    error, plain, moderated = np.array(found).T
    length = math.sqrt((moderated**2).mean() / (plain**2).mean())
    return Coverage(float((error <= plain).mean()), float((error <= moderated).mean()), length)


@dataclass(frozen=True)
class Stops:
    """Results of a sequential test over simulated comparisons."""

    significant: float
    """Share of comparisons in which a test was significant."""
    wrong_sign: float
    covered: float
    """Share of comparisons in which the intervals of all looks contain the true effect."""
    mean_pairs: float
    """Mean number of pairs when the test stops."""


def sequential_stops(
    test: SequentialTest, effect: float, trials: int, seed: int = 1, noise: float | None = None
) -> Stops:
    """Simulates a sequential test of an effect given in units of the prior's standard deviation of the differences.

    `noise` is the true standard deviation in these units. By default it is drawn from the prior.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    sd = np.full(trials, noise or 1.0)
    if test.prior_df and noise is None:
        sd = np.sqrt(test.prior_df / random.chisquare(test.prior_df, trials))
    x = random.standard_normal((trials, test.last)) * sd[:, None] + effect
    stopped, covered = np.zeros(trials, int), np.ones(trials, bool)
    sign = np.zeros(trials)
    for n in range(test.first, test.last + 1):
        df = n - 1 + test.prior_df
        mean = x[:, :n].mean(1)
        variance = ((n - 1) * x[:, :n].var(1, ddof=1) + test.prior_df) / df
        margin = student_quantile(1 - test.nominal_level(n) / 2, df) * np.sqrt(variance / n)
        covered &= np.abs(mean - effect) <= margin
        now = (stopped == 0) & (np.abs(mean) > margin)
        stopped[now], sign[now] = n, np.sign(mean[now])
    found = stopped > 0
    pairs = np.where(found, stopped, test.last).mean()
    wrong = (sign * np.sign(effect) < 0).mean() if effect else 0.0
    return Stops(float(found.mean()), float(wrong), float(covered.mean()), float(pairs))
