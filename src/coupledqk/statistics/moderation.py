"""Moderated variances: what other comparisons say about the noise, for comparisons with few seeds.

With three seeds a variance is known to within a factor of several. The variances of comparable contrasts are taken to be draws
from a scaled inverse chi-squared distribution, the prior, and each is replaced by its posterior mean (G. K. Smyth 2004, "Linear
models and empirical Bayes methods"). If the prior is right, the moderated t has exactly the prior's degrees of freedom more.
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
"""Correlation of the variances of two contrasts that share a baseline: the square of that of their differences, which is 1/2 if
all runs are equally noisy."""


@dataclass(frozen=True)
class Prior:
    """Variances of paired differences are about sd² · df / χ²(df). An infinite df says that they are all sd²."""

    sd: float
    df: float
    most_df: float = math.inf
    """Limit of the degrees of freedom after moderation: a prior estimated from a few contrasts is itself uncertain."""
    source: str = ""
    """What it was estimated from."""

    def moderate(self, estimate: Estimate) -> Estimate:
        """A paired estimate with the posterior mean of its variance."""
        n, own = estimate.df + 1, estimate.df
        variance = estimate.standard_error**2 * n
        share = own / (own + self.df)
        variance = share * variance + (1 - share) * self.sd**2
        return Estimate(estimate.value, math.sqrt(variance / n), max(own, min(own + self.df, self.most_df)))


def estimate_prior(variances: Sequence[float], dfs: Sequence[float], shared: float = SHARED) -> Prior | None:
    """The prior of the variances of several contrasts, by the moments of their logarithms; None if there are fewer than two.

    `shared` is the correlation of the variances: contrasts that share a baseline vary together, so they scatter less than
    independent ones would, and count for fewer.
    """
    if len(variances) < 2:
        return None
    import numpy as np

    special = scipy_special()
    s2, d = np.asarray(variances, float), np.asarray(dfs, float)
    logs = np.log(s2) - special.digamma(d / 2) + np.log(d / 2)
    scatter = logs.var(ddof=1) - (1 - shared) * special.polygamma(1, d / 2).mean()
    df = 2 * _inverse_trigamma(float(scatter)) if scatter > 0 else math.inf
    centre = logs.mean() if math.isinf(df) else logs.mean() + special.digamma(df / 2) - math.log(df / 2)
    most = d.sum() / (1 + (len(d) - 1) * shared)
    return Prior(math.exp(centre / 2), df, float(most))


def _inverse_trigamma(x: float) -> float:
    """Newton's method on 1/trigamma, which is nearly linear and convex: it converges from below without a bracket."""
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
        raise CoupledQKError("the package lacks compare_prior.json: reinstall coupledqk") from None
    return from_dict(Prior, data)
