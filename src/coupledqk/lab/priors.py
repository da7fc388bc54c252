"""Estimates the noise of paired comparisons from the outcomes of experiments. Torch-free."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..errors import CoupledQKError
from ..outcome import Outcome
from ..statistics import Estimate, Prior, UntestableError, estimate_prior, paired, relative_differences


def outcome_prior(outcomes: Sequence[Outcome], source: str = "") -> Prior:
    """The prior of the variances of relative paired differences in perplexity, from each row and its baseline."""
    found = [estimate for outcome in outcomes if outcome.metric.key == "perplexity" for estimate in _estimates(outcome)]
    variances, dfs = zip(*((e.standard_error**2 * (e.df + 1), e.df) for e in found), strict=True) if found else ((), ())
    prior = estimate_prior(variances, dfs)
    if prior is None:
        raise CoupledQKError(
            f"{len(found)} paired contrasts of perplexity in the outcomes: a prior requires at least two"
        )
    return replace(prior, most_df=math.inf, source=source)


def _estimates(outcome: Outcome) -> Iterator[Estimate]:
    rows = {row.label: row for row in outcome.rows}
    for label, baseline in outcome.baselines.items():
        ours, theirs = rows[label].seeds, rows[baseline].seeds
        shared = [seed for seed in ours if math.isfinite(ours[seed] + theirs.get(seed, math.nan))]
        try:
            differences = relative_differences([ours[seed] for seed in shared], [theirs[seed] for seed in shared])
            yield paired(differences, [0.0] * len(differences))
        except UntestableError:
            continue
