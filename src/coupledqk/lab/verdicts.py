"""Tests the claims of an experiment: estimates, tests and findings. `outcome.Verdict` defines the findings.

A run that diverged, or did not reach the measure's target, counts against its cell: its value is worse than any other, so the
interval is unbounded in the direction of worse values. A finding must hold for any values of such runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import CoupledQKError
from ..formats import detectable, effect, uncertainty
from ..outcome import Claim, Evidence, Finding, Verdict
from ..schema import seeds_text
from ..statistics import (
    LEVEL,
    Estimate,
    Prior,
    SpreadRatio,
    UntestableError,
    baseline_mean,
    estimate_prior,
    failures_p,
    holm,
    holm_levels,
    paired,
    relative_differences,
    spread_ratio,
    welch,
)

Samples = Mapping[str, Mapping[int, float]]
"""The metric of every finished run, by label and seed. It is NaN for a run that diverged and infinite for a run that did not
reach the measure's target."""
Better = Literal["lower", "higher"]


def judge(claim: Claim, samples: Samples, better: Better = "lower", prior: Prior | None = None) -> Verdict:
    """The verdict on a single claim. Too few seeds, diverged runs and missing runs do not raise; the verdict mentions them."""
    (contrast,) = _moderated([_contrast(claim, samples, better)], prior)
    return _verdict(contrast, contrast.p(), LEVEL)


def judge_all(
    claims: Sequence[Claim],
    samples: Samples,
    better: Better = "lower",
    prior: Prior | None = None,
    level: float = LEVEL,
) -> list[Verdict]:
    """The verdicts on the claims of one experiment: the primary claim is uncorrected, the others have Holm's correction.

    The correction widens an interval to the level at which Holm's method tests its claim, so that finding, interval and p-value
    agree. Variances of paired differences are moderated by `prior`, or by a prior estimated from the experiment's claims.
    A sequential comparison passes the nominal level of the look as `level`.
    """
    check_primary(claims)
    contrasts = _moderated([_contrast(claim, samples, better) for claim in claims], prior)
    sharing = [c for c in contrasts if c.is_tested and not c.claim.primary]
    p_values = [contrast.p() for contrast in sharing]
    corrected = zip(holm(p_values), holm_levels(p_values, level), strict=True)
    terms = dict(zip((contrast.claim for contrast in sharing), corrected, strict=True))
    return [_verdict(c, *terms.get(c.claim, (c.p(), level))) for c in contrasts]


def _moderated(contrasts: Sequence[_Contrast], prior: Prior | None) -> list[_Contrast]:
    """The same contrasts, with the variances of paired differences moderated."""
    found = [(contrast, contrast.paired_estimate) for contrast in contrasts]
    arms = {(c.claim.variant, c.claim.baseline): estimate for c, estimate in found if estimate}
    variances = [arm.standard_error**2 * (arm.df + 1) for arm in arms.values()]
    prior = prior or estimate_prior(variances, [arm.df for arm in arms.values()])
    if prior is None:
        return list(contrasts)
    return [replace(c, estimate=prior.moderate(estimate)) if estimate else c for c, estimate in found]


def check_primary(claims: Sequence[Claim]) -> None:
    chosen = [claim.text for claim in claims if claim.primary]
    if claims and len(chosen) != 1:
        raise CoupledQKError(
            f"an experiment has one primary claim, given {len(chosen)}: set primary = true on one of them"
        )


@dataclass(frozen=True)
class _Failures:
    """Numbers of seeds in which the run of one cell failed and that of the other did not, among seeds that both cells have."""

    ours: int = 0
    theirs: int = 0
    both: int = 0
    """Number of seeds in which both failed. They have no effect on the interval, but count in both rates."""
    tried: tuple[int, int] = (0, 0)
    """Number of seeds of each cell."""
    by_target: bool = False
    """Whether a run failed because it did not reach a target. The baseline defines the target and always reaches it, so the
    rates of the two cells cannot be compared."""

    def __bool__(self) -> bool:
        return bool(self.ours or self.theirs)

    def p(self) -> float:
        """p-value of the hypothesis that both cells fail at the same rate."""
        return failures_p(self.ours + self.both, self.tried[0], self.theirs + self.both, self.tried[1])

    def decide(self, level: float) -> int:
        """1 if the variant fails significantly more often than the baseline, −1 if significantly less often, 0 otherwise."""
        n_ours, n_theirs = self.tried
        if not self or self.p() > level:
            return 0
        return 1 if self.ours * n_theirs > self.theirs * n_ours else -1


@dataclass(frozen=True)
class _Contrast:
    claim: Claim
    estimate: Estimate | SpreadRatio | None
    """The estimate from the seeds whose runs finished; None if they cannot be tested."""
    n: tuple[int, int]
    failures: _Failures
    worse: int
    """The sign of a change for the worse."""
    notes: tuple[str, ...]
    """Notes on missing and failed runs."""
    untestable: str = ""
    """The reason why there is no estimate."""

    @property
    def paired_estimate(self) -> Estimate | None:
        """The estimate if it is one of paired differences. Interactions are excluded, because their noise differs."""
        by_seed = len(self.claim.groups) == 1 and self.claim.elsewhere is None
        return self.estimate if by_seed and isinstance(self.estimate, Estimate) else None

    @property
    def compares_failures(self) -> bool:
        """Whether the rates of failed runs are tested. Claims about spreads and interactions are excluded, since they
        are not about which of two cells is better."""
        is_of_two_cells = self.claim.kind not in ("less_variable", "interaction")
        return bool(self.failures) and is_of_two_cells and not self.failures.by_target

    @property
    def is_tested(self) -> bool:
        return self.estimate is not None or self.compares_failures

    def decide(self, level: float) -> int:
        """The sign of a significant difference in failed runs, variant against baseline; 0 if there is none."""
        return self.failures.decide(level) if self.compares_failures else 0

    def p(self) -> float:
        if self.estimate is None:
            return self.failures.p() if self.compares_failures else 1.0
        if self.claim.kind == "equal" and isinstance(self.estimate, Estimate):
            return self.estimate.p_equal(self.claim.margin)
        return self.estimate.p()

    def evidence(self, p: float, level: float) -> Evidence | None:
        """The evidence at a level. Two one-sided tests at a level correspond to the interval that excludes this level on each
        side."""
        claim, estimate = self.claim, self.estimate
        if estimate is None:
            return None
        failed, is_equality = (self.failures.ours, self.failures.theirs), claim.kind == "equal"
        if isinstance(estimate, SpreadRatio):
            low, high = (end - 1 for end in estimate.interval(1 - level))
            detectable = 1 - estimate.detectable_ratio(level)
            return Evidence(estimate.value - 1, (low, high), 1 - level, p, self.n, False, detectable, failed=failed)
        narrow = estimate.interval(1 - 2 * level)
        return Evidence(
            effect=estimate.value,
            interval=narrow if is_equality else estimate.interval(1 - level),
            confidence=1 - 2 * level if is_equality else 1 - level,
            p=p,
            n=self.n,
            paired=len(claim.groups) == 1,
            detectable=estimate.detectable_margin(level) if is_equality else estimate.detectable_effect(level),
            equivalent=-claim.margin <= narrow[0] and narrow[1] <= claim.margin and not any(failed),
            failed=failed,
            df=estimate.df,
        )

    def bounds(self, evidence: Evidence | None, level: float) -> tuple[float, float]:
        """The interval, extended to infinity on the sides that failed runs could affect."""
        low, high = evidence.interval if evidence else (-math.inf, math.inf)
        failures, claim = self.failures, self.claim
        if claim.kind in ("less_variable", "interaction"):
            return (-math.inf, math.inf) if failures else (low, high)
        if decided := self.decide(level):
            return (claim.margin, math.inf) if decided * self.worse > 0 else (-math.inf, -claim.margin)
        up, down = (failures.ours, failures.theirs)[:: self.worse]
        return -math.inf if down else low, math.inf if up else high


def _contrast(claim: Claim, samples: Samples, better: Better) -> _Contrast:
    """The contrast of a claim: the estimate of its effect, or the reason why there is none."""
    values, failures, notes = _values(claim, samples)
    worse = 1 if better == "lower" else -1
    variant, baseline, *elsewhere = values
    n = (len(variant), len(baseline))
    if not all(values):
        return _Contrast(claim, None, n, failures, worse, notes, "no finished runs to compare")
    try:
        if elsewhere:
            ours, theirs = relative_differences(variant, baseline), relative_differences(*elsewhere)
            n = (len(ours), len(theirs))
        else:
            unit = baseline_mean(baseline)
            ours, theirs = [x / unit for x in variant], [x / unit for x in baseline]
        method = spread_ratio if claim.kind == "less_variable" else paired if len(claim.groups) == 1 else welch
        return _Contrast(claim, method(ours, theirs), n, failures, worse, notes)
    except UntestableError as error:
        return _Contrast(claim, None, n, failures, worse, notes, str(error))


def _values(claim: Claim, samples: Samples) -> tuple[list[list[float]], _Failures, tuple[str, ...]]:
    """The values of each cell for the seeds that its whole group finished, the numbers of failed runs, and notes on missing
    runs."""
    values, notes, failed, both = [], [], [], 0
    for group in claim.groups:
        found = {label: samples.get(label, {}) for label in group}
        seeds = sorted(set().union(*found.values()))
        tried = [seed for seed in seeds if all(seed in runs for runs in found.values())]
        whole = [seed for seed in tried if all(math.isfinite(runs[seed]) for runs in found.values())]
        some = [seed for seed in tried if any(math.isfinite(runs[seed]) for runs in found.values()) or len(group) == 1]
        both += len(tried) - len(some)
        for label, runs in found.items():
            values.append([runs[seed] for seed in whole])
            failed.append((sum(not math.isfinite(runs[seed]) for seed in some), len(tried)))
            notes += _notes(label, runs, [seed for seed in seeds if seed not in runs])
    (ours, n_ours), (theirs, n_theirs), *elsewhere = failed
    others = sum(count for count, _ in elsewhere)
    labels = [label for group in claim.groups for label in group]
    by_target = any(math.isinf(value) for label in labels for value in samples.get(label, {}).values())
    return values, _Failures(ours, theirs + others, both, (n_ours, n_theirs), by_target), tuple(notes)


def _notes(label: str, runs: Mapping[int, float], missing: Sequence[int]) -> list[str]:
    diverged = [seed for seed in runs if math.isnan(runs[seed])]
    never = [seed for seed in runs if math.isinf(runs[seed])]
    notes = [f"{label} has no run{_with_seeds(missing)}"] if missing or not runs else []
    notes += [f"{label} diverged{_with_seeds(diverged)}, which counts against it"] if diverged else []
    never_reached = f"{label} did not reach the target{_with_seeds(never)}, which counts against it"
    return [*notes, never_reached] if never else notes


def _with_seeds(seeds: Sequence[int]) -> str:
    return f" with seed{'s' * (len(seeds) > 1)} {seeds_text(seeds)}" if seeds else ""


def _verdict(contrast: _Contrast, p: float, level: float) -> Verdict:
    claim, evidence = contrast.claim, contrast.evidence(p, level)
    low, high = contrast.bounds(evidence, level)
    finding = _finding(claim, evidence, low, high)
    if evidence is None:
        parts = [contrast.untestable]
    else:
        ended = "reached the target" if contrast.failures.by_target else "finished"
        among = f"in the runs that {ended}, " if any(evidence.failed) else ""
        parts = [f"{_measured(claim, evidence)}: {among}{_reason(claim, evidence)}", _power(claim, evidence)]
    if contrast.decide(level):
        parts.append("the difference in failed runs is significant and determines the verdict")
    return Verdict(claim, finding, "; ".join([*parts, *contrast.notes]) + ".", evidence)


def _finding(claim: Claim, evidence: Evidence | None, low: float, high: float) -> Finding:
    """The finding from the bounds of the effect. A false difference and a false equivalence are mutually exclusive errors, so
    both tests have the same level."""
    if claim.kind == "equal":
        if evidence and evidence.equivalent:
            return "supported"
        return "contradicted" if low >= claim.margin or high <= -claim.margin else "inconclusive"
    if claim.side < 0:
        low, high = -high, -low
    if high <= 0 or (low < 0 and high < abs(claim.paper_effect or 0)):
        return "contradicted"
    if evidence and evidence.equivalent:
        return "equivalent"
    return "supported" if low >= 0 else "inconclusive"


def _measured(claim: Claim, evidence: Evidence) -> str:
    """The effect and its uncertainty in words.

    For example: hamiltonian is −1.70% against standard (95% interval −2.40% to −1.00%, 5 paired seeds, p = 0.003).
    """
    size = effect(claim, evidence.effect)
    if claim.kind == "less_variable":
        what = f"The standard deviation of {claim.variant} is {size} that of {claim.baseline}"
    elif claim.elsewhere:
        there = "{} against {}".format(*claim.elsewhere)
        what = f"The effect of {claim.variant} against {claim.baseline} minus that of {there} is {size}"
    else:
        what = f"{claim.variant} is {size} against {claim.baseline}"
    return f"{what} ({uncertainty(claim, evidence)})"


def _reason(claim: Claim, evidence: Evidence) -> str:
    """The position of the interval relative to zero, the published effect and the margin."""
    low, high = evidence.interval
    margin = f"the margin of ±{100 * claim.margin:.3g}%"
    if claim.kind == "equal":
        within, beyond = -claim.margin <= low and high <= claim.margin, claim.margin <= low or high <= -claim.margin
        return (
            f"the interval lies {'within' if within else 'beyond' if beyond else 'neither within nor beyond'} {margin}"
        )
    zero_inside, zero = low < 0 < high, "a ratio of 1" if claim.kind == "less_variable" else "zero"
    paper_inside = claim.paper_effect is not None and low <= claim.paper_effect <= high
    paper = "" if claim.paper_effect is None else f"the published {effect(claim, claim.paper_effect)}"
    if not zero_inside:
        side = "claimed" if (low > 0) == (claim.side > 0) else "other"
        reason = f"the interval lies on the {side} side"
        if paper and side == "claimed":
            reason += f", with {paper} {'inside' if paper_inside else 'outside'} it"
    elif not paper:
        reason = f"{zero} lies inside the interval"
    else:
        reason = f"{zero} {'and ' + paper + ' lie' if paper_inside else 'lies'} inside the interval"
        reason += "" if paper_inside else f", {paper} outside"
    return f"{reason}, and the effect lies within {margin}" if evidence.equivalent else reason


def _power(claim: Claim, evidence: Evidence) -> str:
    if claim.kind == "equal":
        return f"80% power to show equality within ±{detectable(claim, evidence)}"
    what = "a ratio" if claim.kind == "less_variable" else "an effect"
    return f"80% power to detect {what} of {detectable(claim, evidence)}"
