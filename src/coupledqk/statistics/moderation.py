"""Moderated variances: comparisons with few seeds borrow information about the noise from other comparisons.

A variance estimated from three seeds has a large error. The variances of comparable contrasts are modelled as draws from a
scaled inverse chi-squared distribution, the prior, and each is replaced by its posterior mean (G. K. Smyth 2004, "Linear models
and empirical Bayes methods"). If the prior is correct, moderation adds exactly the prior's degrees of freedom to the t
statistic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ..errors import CoupledQKError
from ..schema import from_dict
from .estimates import Estimate, scipy_special

SHARED = 0.25
"""Correlation of the variances of two contrasts that share a baseline. It is the square of the correlation of their
differences, which is 1/2 if all runs have the same variance."""


@dataclass(frozen=True)
class Prior:
    """A distribution of variances of paired differences: sd² · df / χ²(df). With an infinite df all variances are sd²."""

    sd: float
    df: float
    most_df: float = math.inf
    """Maximum degrees of freedom after moderation, since a prior estimated from few contrasts is itself uncertain."""
    source: str = ""
    """Description of the data the prior was estimated from."""

    def moderate(self, estimate: Estimate) -> Estimate:
        """The estimate with its variance replaced by the posterior mean."""
        n, own = estimate.df + 1, estimate.df
        variance = estimate.standard_error**2 * n
        share = own / (own + self.df)
        variance = share * variance + (1 - share) * self.sd**2
        return Estimate(estimate.value, math.sqrt(variance / n), max(own, min(own + self.df, self.most_df)))


def estimate_prior(
    variances: Sequence[float], dfs: Sequence[float], shared: float = SHARED, limit: float = math.inf
) -> Prior | None:
    """The prior of the variances of several contrasts, from the moments of their logarithms; None for fewer than two contrasts.

    `shared` is the mean correlation of the variances of two contrasts. Variances of contrasts that share a baseline are
    correlated, so they scatter less than independent ones and contain less information. `limit` is the maximum of the prior's
    degrees of freedom.
    """
    if len(variances) < 2:
        return None
    import numpy as np

    special = scipy_special()
    s2, d = np.asarray(variances, float), np.asarray(dfs, float)
    logs = np.log(s2) - special.digamma(d / 2) + np.log(d / 2)
    scatter = logs.var(ddof=1) - (1 - shared) * special.polygamma(1, d / 2).mean()
    df = min(limit, 2 * _inverse_trigamma(float(scatter)) if scatter > 0 else math.inf)
    centre = logs.mean() if math.isinf(df) else logs.mean() + special.digamma(df / 2) - math.log(df / 2)
    most = d.sum() / (1 + (len(d) - 1) * shared)
    return Prior(math.exp(centre / 2), df, float(most))


def _inverse_trigamma(x: float) -> float:
    """The inverse of trigamma, by Newton's method on 1/trigamma. That function is convex and nearly linear, so the iteration
    converges from below without a bracket."""
    special = scipy_special()
    y = 0.5 + 1 / x
    for _ in range(50):
        value = float(special.polygamma(1, y))
        step = value * (1 - value / x) / float(special.polygamma(2, y))
        y += step
        if abs(step) < 1e-10 * y:
            break
    return y


@cache
def compare_prior() -> Prior:
    """The prior for `compare`, shipped with the package: relative paired differences in perplexity of small models."""
    try:
        data = json.loads((files("coupledqk.statistics") / "compare_prior.json").read_text("utf-8"))
    except FileNotFoundError:
        raise CoupledQKError("compare_prior.json is missing from the package: reinstall coupledqk") from None
    return from_dict(Prior, data)
