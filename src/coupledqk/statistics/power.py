"""Power: which effect a number of pairs detects, and how many pairs an effect needs."""

import math
from itertools import count

from ..schema import require
from .estimates import LEVEL, POWER, detectable_in_errors


def detectable_effect(n: int, sd: float, level: float = LEVEL, power: float = POWER, prior_df: float = 0) -> float:
    """The smallest mean difference that a two-sided paired t-test with `n` pairs detects with this power.

    `sd` is the standard deviation of the differences; `prior_df` the degrees of freedom that moderation adds.
    """
    require(n >= 2, "n", n, "at least 2 pairs")
    require(sd > 0, "sd", sd, "above 0")
    return detectable_in_errors(n - 1 + prior_df, level, power) * sd / math.sqrt(n)


def pairs_needed(effect: float, sd: float, level: float = LEVEL, power: float = POWER, prior_df: float = 0) -> int:
    """The smallest number of pairs with which the test detects an effect of this size with this power."""
    require(effect > 0, "effect", effect, "above 0")
    # The normal approximation needs the fewest; Student's t needs a few more.
    first = max(2, math.floor((detectable_in_errors(math.inf, level, power) * sd / effect) ** 2))
    return next(n for n in count(first) if detectable_effect(n, sd, level, power, prior_df) <= effect)
