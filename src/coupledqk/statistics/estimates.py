"""Differences of means and ratios of standard deviations from few seeds, with intervals, p-values and detectable effects.

All functions take one value per seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean  # from the standard library
from typing import Any

from ..errors import CoupledQKError

LEVEL = 0.05
"""Significance level of tests: the probability of finding an effect where there is none."""
POWER = 0.8
"""Power of tests: the probability of finding an effect that exists."""


class UntestableError(CoupledQKError):
    """The values allow no test: there are too few, some are not finite, or all are equal."""


def scipy_special() -> Any:
    """SciPy's distribution functions."""
    try:
        from scipy import special
    except ImportError:
        raise CoupledQKError("intervals and tests need SciPy: pip install 'coupledqk[lab]'") from None
    return special


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (ddof 1). The standard deviation of a single value is NaN."""

    n: int
    mean: float
    std: float


def summary(values: Sequence[float]) -> Summary:
    _check(values, least=1)
    return Summary(len(values), fmean(values), _std(values) if len(values) > 1 else math.nan)


@dataclass(frozen=True)
class Estimate:
    """A difference of means. Its error, in standard errors, follows Student's t distribution."""

    value: float
    standard_error: float
    df: float
    """Degrees of freedom."""

    def interval(self, confidence: float = 1 - LEVEL) -> tuple[float, float]:
        margin = self._quantile((1 - confidence) / 2) * self.standard_error
        return self.value - margin, self.value + margin

    def p(self) -> float:
        """Two-sided p-value of the hypothesis that there is no difference."""
        return float(2 * scipy_special().stdtr(self.df, -abs(self.value) / self.standard_error))

    def p_equal(self, margin: float) -> float:
        """p-value of two one-sided tests of the hypothesis that the difference is beyond ±margin.

        It is at most `level` if and only if the interval with confidence 1 − 2 · level lies within the margin.
        """
        return float(scipy_special().stdtr(self.df, (abs(self.value) - margin) / self.standard_error))

    def detectable_effect(self, level: float = LEVEL, power: float = POWER) -> float:
        """The smallest difference that the two-sided test detects with this power, if the spread is as observed."""
        return detectable_in_errors(self.df, level, power) * self.standard_error

    def detectable_margin(self, level: float = LEVEL, power: float = POWER) -> float:
        """The smallest equivalence margin that the test detects with this power, if there is no difference and the spread is as
        observed."""
        return _margin_in_errors(self.df, level, power) * self.standard_error

    def _quantile(self, tail: float) -> float:
        return student_quantile(1 - tail, self.df)


def student_quantile(probability: float, df: float) -> float:
    special = scipy_special()
    return float(special.ndtri(probability) if math.isinf(df) else special.stdtrit(df, probability))


def detectable_in_errors(df: float, level: float = LEVEL, power: float = POWER) -> float:
    """The smallest difference that a two-sided t-test detects with this power, in standard errors."""
    # The test's other tail is negligible: at this power it is reached with a probability of about one in a million.
    if math.isinf(df):
        return float(scipy_special().ndtri(1 - level / 2) + scipy_special().ndtri(power))
    return float(scipy_special().nctdtrinc(df, 1 - power, student_quantile(1 - level / 2, df)))


@cache
def _margin_in_errors(df: float, level: float, power: float) -> float:
    import numpy as np

    special = scipy_special()
    from scipy.optimize import root_scalar

    # Conditional on the sample's standard deviation, the mean is normal: average over a thousand equally likely values.
    chances = (np.arange(1000) + 0.5) / 1000
    scales = np.ones(1) if math.isinf(df) else np.sqrt(special.chdtri(df, chances) / df)
    bounds = student_quantile(1 - level, df) * scales

    def too_much(margin: float) -> float:
        return np.maximum(2 * special.ndtr(margin - bounds) - 1, 0).mean() - power

    return float(root_scalar(too_much, bracket=(0, bounds.max() + 10)).root)


def mean_of(differences: Sequence[float]) -> Estimate:
    """Mean of independent differences, such as those of pairs of runs with the same seed."""
    _check(differences, least=2)
    spread = _std(differences)
    _check_spread(spread, *differences)
    return Estimate(fmean(differences), spread / math.sqrt(len(differences)), len(differences) - 1)


def interval_of_mean(differences: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of the mean of independent differences; None if there are too few or if they do not vary."""
    try:
        return mean_of(differences).interval()
    except UntestableError:
        return None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Mean of the differences ours − theirs, paired by seed. Effects of the initial weights and the data order that are common
    to both cancel."""
    for values in (ours, theirs):
        _check(values, least=2)
    differences = _differences(ours, theirs)
    _check_spread(_std(differences), *ours, *theirs)
    return mean_of(differences)


def welch(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Mean of ours − mean of theirs from unpaired seeds with possibly unequal variances (Welch's t, Satterthwaite's degrees of
    freedom)."""
    parts = []
    for values in (ours, theirs):
        _check(values, least=2)
        parts.append((_std(values) ** 2 / len(values), len(values) - 1))
    variance = sum(part for part, _ in parts)
    _check_spread(math.sqrt(variance), *ours, *theirs)
    df = variance**2 / sum(part**2 / own for part, own in parts)
    return Estimate(fmean(ours) - fmean(theirs), math.sqrt(variance), df)


@dataclass(frozen=True)
class SpreadRatio:
    """A ratio of standard deviations. Its square divided by the square of the true ratio follows Fisher's F distribution.

    This holds for independent normal samples. The interval is conservative if seeds affect both samples in the same way.
    """

    value: float
    df: tuple[int, int]

    def interval(self, confidence: float = 1 - LEVEL) -> tuple[float, float]:
        tail = (1 - confidence) / 2
        return self.value / math.sqrt(self._quantile(1 - tail)), self.value / math.sqrt(self._quantile(tail))

    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the standard deviations are equal."""
        special = scipy_special()
        return float(2 * min(special.fdtr(*self.df, self.value**2), special.fdtrc(*self.df, self.value**2)))

    def detectable_ratio(self, level: float = LEVEL, power: float = POWER) -> float:
        """The largest ratio below 1 that the two-sided test detects with this power."""
        return math.sqrt(self._quantile(level / 2) / self._quantile(power))

    def _quantile(self, probability: float) -> float:
        return float(scipy_special().fdtri(*self.df, probability))


def spread_ratio(ours: Sequence[float], theirs: Sequence[float]) -> SpreadRatio:
    for values in (ours, theirs):
        _check(values, least=2)
        _check_spread(_std(values), *values)
    return SpreadRatio(_std(ours) / _std(theirs), (len(ours) - 1, len(theirs) - 1))


def relative_differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Differences ours − theirs, paired by seed, in units of the mean of theirs.

    The uncertainty of that mean is neglected: it would change a difference of 5% by 5% of the mean's error, far less than the
    variation between seeds. Large effects have wrong intervals, though tests of no effect are not affected: if runs vary by the
    same percentage and independently, 95% intervals of +30% and +100% cover the truth in 93% and 90% of cases, those of −50% in
    99%.
    """
    unit = baseline_mean(theirs)
    return [difference / unit for difference in _differences(ours, theirs)]


def baseline_mean(values: Sequence[float]) -> float:
    """The mean that effects are relative to. Raises if it is not positive."""
    mean = summary(values).mean
    if mean <= 0:
        raise UntestableError(f"effects are relative to the baseline's mean, which must be positive and is {mean:g}")
    return mean


def bootstrap_interval(
    values: Sequence[float], confidence: float = 1 - LEVEL, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the mean, which does not assume normal values. It requires many values, such as one per
    document."""
    # Percentiles, expanded to agree with Student's t for normal values: plain percentiles are too narrow by √((n − 1)/n) and
    # use normal instead of t quantiles. BCa would estimate skewness and bias from the n values, which is noise if n is small.
    # Resampled means never leave the sample's range, which contains the true mean with probability 1 − 2^(1 − n) only, 75% for
    # 3 seeds. Verdicts therefore use Student's intervals.
    import numpy as np

    _check(values, least=2)
    special, n = scipy_special(), len(values)
    tail = special.ndtr(math.sqrt(n / (n - 1)) * student_quantile((1 - confidence) / 2, n - 1))
    means = np.random.default_rng(seed).choice(np.asarray(values, float), (resamples, n)).mean(1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _std(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    if len(ours) != len(theirs):
        raise CoupledQKError(f"{len(ours)} values against {len(theirs)} cannot be paired: give one of each per seed")
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def _check(values: Sequence[float], least: int) -> None:
    if len(values) < least:
        needed = "a test needs two" if least == 2 else "a mean needs one"
        raise UntestableError(f"{len(values)} seed{'s' * (len(values) != 1)}: {needed}")
    if not all(map(math.isfinite, values)):
        raise UntestableError("a value is not finite: leave diverged runs out, and report them")


def _check_spread(spread: float, *values: float) -> None:
    """Raises if values differ by no more than rounding: the seed was not used, or the metric has reached its limit, and an
    interval of zero width would be wrong."""
    if spread <= 1e-12 * max(map(abs, values)):
        raise UntestableError("all seeds give the same value: without variation between seeds no test is possible")
