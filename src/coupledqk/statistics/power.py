"""Power analysis: the effect that a number of pairs detects, and the number of pairs that an effect requires."""

import math
from functools import cache
from itertools import count

from ..schema import require
from .estimates import LEVEL, POWER, detectable_in_errors, scipy_special, student_quantile


def detectable_effect(n: int, sd: float, level: float = LEVEL, power: float = POWER, prior_df: float = 0) -> float:
    """The smallest mean difference that a two-sided paired t-test with `n` pairs detects with this power.

    `sd` is the standard deviation of the differences. With `prior_df` it is the standard deviation of a prior
    (`moderation.Prior`) that moderates the test, and the power is averaged over the prior.
    """
    require(n >= 2, "n", n, "at least 2 pairs")
    require(sd > 0, "sd", sd, "above 0")
    if 0 < prior_df < math.inf:
        return _detectable_with_prior(n, level, power, prior_df) * sd
    return detectable_in_errors(n - 1 + prior_df, level, power) * sd / math.sqrt(n)


@cache
def _detectable_with_prior(n: int, level: float, power: float, prior_df: float) -> float:
    """The detectable effect in units of the prior's sd. Conditional on the true variance and the sample variance, the mean is
    normal, so the power is averaged over equally likely values of both."""
    import numpy as np

    special = scipy_special()
    from scipy.optimize import root_scalar

    chances, df = (np.arange(200) + 0.5) / 200, n - 1 + prior_df
    variance = prior_df / special.chdtri(prior_df, chances)[:, None]
    pooled = (prior_df + variance * special.chdtri(n - 1, chances)) / df
    margin = student_quantile(1 - level / 2, df) * np.sqrt(pooled / n)

    def excess(effect: float) -> float:
        return float(special.ndtr((effect - margin) / np.sqrt(variance / n)).mean()) - power

    return float(root_scalar(excess, bracket=(0, 1e3)).root)


def pairs_needed(effect: float, sd: float, level: float = LEVEL, power: float = POWER, prior_df: float = 0) -> int:
    """The smallest number of pairs with which the test detects an effect of this size with this power."""
    require(effect > 0, "effect", effect, "above 0")
    # A known standard deviation requires the fewest pairs.
    first = max(2, math.floor((detectable_in_errors(math.inf, level, power) * sd / effect) ** 2 / 2))
    return next(n for n in count(first) if detectable_effect(n, sd, level, power, prior_df) <= effect)
