"""Estimates the noise of paired comparisons from the outcomes of experiments. Torch-free."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..errors import CoupledQKError
from ..outcome import Outcome
from ..statistics import SHARED, Estimate, Prior, UntestableError, estimate_prior, mean_of, relative_differences

MOST_DF = 4.0
"""Maximum degrees of freedom of the prior. The outcomes cover few texts and run lengths, between which variances differ by
more than between the rows of one table. A prior with fewer degrees of freedom than justified is conservative."""


@dataclass(frozen=True)
class Contrast:
    """The paired differences of one row from its baseline."""

    estimate: Estimate
    pairs: frozenset[tuple[str, str]]
    """Identities of the two runs of each pair."""

    @property
    def variance(self) -> float:
        return self.estimate.standard_error**2 * (self.estimate.df + 1)

    @property
    def baselines(self) -> set[str]:
        return {baseline for _, baseline in self.pairs}


def outcome_prior(outcomes: Sequence[Outcome], source: str = "") -> Prior:
    """The prior of the variances of relative paired differences in perplexity.

    Each row whose baseline is not coupled and differs only in the attention is one contrast, as in `compare`. Contrasts that
    share a baseline are correlated, and of contrasts that share pairs of runs only the one with the most pairs counts.
    """
    found = [contrast for each in outcomes if each.metric.key == "perplexity" for contrast in contrasts(each)]
    kept: list[Contrast] = []
    for contrast in sorted(found, key=lambda contrast: -contrast.estimate.df):
        if not any(contrast.pairs & other.pairs for other in kept):
            kept.append(contrast)
    if len(kept) < 2:
        raise CoupledQKError(
            f"{len(kept)} paired contrasts of perplexity in the outcomes: a prior requires at least two"
        )
    shared = SHARED * fmean(bool(one.baselines & other.baselines) for one, other in itertools.combinations(kept, 2))
    dfs = [contrast.estimate.df for contrast in kept]
    prior = estimate_prior([contrast.variance for contrast in kept], dfs, shared, MOST_DF)
    assert prior is not None
    about = f"{len(kept)} contrasts with {sum(dfs):g} degrees of freedom"
    return replace(prior, most_df=math.inf, source=f"{about}, from {source}" if source else about)


def contrasts(outcome: Outcome) -> Iterator[Contrast]:
    """The contrasts of rows with their baselines. Rows that differ in more than the attention, that have a coupled baseline, or
    that have fewer than two finished pairs are left out."""
    rows = {row.label: row for row in outcome.rows}
    cells = {(cell.label, cell.seed): cell for cell in outcome.cells}
    coupled = {cell.label for cell in outcome.cells if any(map(_is_dynamics, cell.settings))}
    for label, baseline in outcome.baselines.items():
        if baseline in coupled or not outcome.differ_in_attention(label, baseline):
            continue
        ours, theirs = rows[label].seeds, rows[baseline].seeds
        seeds = [seed for seed in ours if math.isfinite(ours[seed] + theirs.get(seed, math.nan))]
        try:
            differences = relative_differences([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
            estimate = mean_of(differences)
        except UntestableError:
            continue
        pairs = ((cells[label, seed].identity, cells[baseline, seed].identity) for seed in seeds)
        yield Contrast(estimate, frozenset(pairs))


def _is_dynamics(setting: str) -> bool:
    return setting.startswith("model.attention.dynamics.")
