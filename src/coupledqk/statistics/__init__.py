"""Statistics for few seeds: estimates, moderated variances, sequential tests and power. Torch-free; requires SciPy."""

from .corrections import failures_p, holm, holm_levels
from .estimates import (
    LEVEL,
    POWER,
    Estimate,
    SpreadRatio,
    Summary,
    UntestableError,
    baseline_mean,
    bootstrap_interval,
    interval_of_mean,
    mean_of,
    paired,
    relative_differences,
    scipy_special,
    spread_ratio,
    student_quantile,
    summary,
    welch,
)
from .moderation import SHARED, Prior, compare_prior, estimate_prior
from .power import detectable_effect, pairs_needed
from .sequential import SequentialTest

__all__ = [
    "LEVEL",
    "POWER",
    "SHARED",
    "Estimate",
    "Prior",
    "SequentialTest",
    "SpreadRatio",
    "Summary",
    "UntestableError",
    "baseline_mean",
    "bootstrap_interval",
    "compare_prior",
    "detectable_effect",
    "estimate_prior",
    "failures_p",
    "holm",
    "holm_levels",
    "interval_of_mean",
    "mean_of",
    "paired",
    "pairs_needed",
    "relative_differences",
    "scipy_special",
    "spread_ratio",
    "student_quantile",
    "summary",
    "welch",
]
