"""Claims as data, and what the runs say about them.

A claim *holds here* if the interval of the effect lies on the claimed side. It *does not hold here* if the interval lies on the
other side, or includes no effect but not the paper's. Otherwise one *cannot tell with this many seeds*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import CoupledQKError
from ..schema import check_fields, require
from ..statistics import (
    LEVEL,
    Estimate,
    SpreadRatio,
    UntestableError,
    baseline_mean,
    holm,
    holm_levels,
    paired,
    relative_differences,
    spread_ratio,
    welch,
)

Kind = Literal["lower", "higher", "equal", "less_variable", "interaction"]
Outcome = Literal["holds here", "does not hold here", "cannot tell with this many seeds"]
Samples = Mapping[str, Mapping[int, float]]
"""The metric of every finished run: by the cell's label, then by seed. NaN is a run that diverged, infinity one that never
got where its metric asks for."""


@dataclass(frozen=True)
class Claim:
    """One contrast between cells of an experiment. Effects are relative: −0.066 is 6.6% of the baseline's mean below it."""

    text: str
    """The claim in words."""
    kind: Kind
    variant: str
    """A cell's label, as is `baseline`."""
    baseline: str
    elsewhere: tuple[str, str] | None = None
    """Of an interaction: the variant and the baseline on the other corpus. Its effect is the difference of the two effects."""
    paper_effect: float | None = None
    """As published, if it was. Of less_variable: the ratio of standard deviations, less 1."""
    margin: float = 0.01
    """Of equal: a smaller effect does not matter."""
    paired: bool = True
    """Seed by seed. If not, each cell counts all its seeds; an interaction stays paired within each corpus."""
    primary: bool = False
    """The one claim of its experiment that was chosen before running, and that is not corrected for the others."""
    source: str = ""
    """The paper's table."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.variant != self.baseline, "variant", self.variant, "another cell than the baseline")
        needed = 2 if self.kind == "interaction" else 0
        require(len(self.elsewhere or ()) == needed, "elsewhere", self.elsewhere, f"{needed} labels for {self.kind}")
        require(self.margin > 0, "margin", self.margin, "a share of the baseline's mean above 0, such as 0.01")
        sign = math.copysign(1, self.paper_effect) if self.paper_effect else None
        if self.kind == "interaction":
            require(sign is not None, "paper_effect", self.paper_effect, "the effect whose sign is claimed")
        elif self.kind != "equal":
            require(sign in (None, self.side), "paper_effect", self.paper_effect, f"an effect that is {self.kind}")

    @property
    def side(self) -> int:
        """The sign of the claimed effect; 0 for equality."""
        if self.kind == "interaction":
            return 1 if (self.paper_effect or 0) > 0 else -1
        return {"lower": -1, "less_variable": -1, "higher": 1, "equal": 0}[self.kind]

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Labels of cells that are taken seed by seed with one another."""
        here = (self.variant, self.baseline)
        if self.kind == "less_variable" or not (self.paired or self.elsewhere):
            return [(self.variant,), (self.baseline,)]
        if self.elsewhere is None:
            return [here]
        return [here + self.elsewhere] if self.paired else [here, self.elsewhere]


@dataclass(frozen=True)
class Evidence:
    """What was measured, in the units of `Claim.paper_effect`."""

    effect: float
    interval: tuple[float, float]
    confidence: float
    """Of the interval. It is higher where several claims share one error rate."""
    p: float
    """That there is no effect; of equal, that it is beyond the margin. Adjusted by Holm's method where claims share."""
    n: tuple[int, int]
    """Seeds on either side of the contrast."""
    paired: bool
    smallest: float
    """The smallest effect, as a magnitude, or the smallest margin of equal that these seeds show four times in five."""


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    outcome: Outcome
    sentence: str
    """What was found and why it leads to this outcome."""
    evidence: Evidence | None
    """None where no test could be made; the sentence says why."""


def judge(claim: Claim, samples: Samples) -> Verdict:
    """A claim by itself. Too few seeds, diverged or missing runs never raise: they are said in the verdict."""
    contrast = _contrast(claim, samples)
    return _verdict(contrast, contrast.p(), LEVEL) if isinstance(contrast, _Contrast) else contrast


def judge_all(claims: Sequence[Claim], samples: Samples) -> list[Verdict]:
    """The claims of one experiment: the primary one by itself, the others with Holm's correction for their number.

    The correction widens an interval to the level at which Holm's method tests its claim, so outcome, interval and p agree.
    """
    check_primary(claims)
    contrasts = [_contrast(claim, samples) for claim in claims]
    sharing = [c for c in contrasts if isinstance(c, _Contrast) and not c.claim.primary]
    p_values = [contrast.p() for contrast in sharing]
    corrected = zip(holm(p_values), holm_levels(p_values), strict=True)
    terms = dict(zip((contrast.claim for contrast in sharing), corrected, strict=True))
    return [
        c if isinstance(c, Verdict) else _verdict(c, *(terms[c.claim] if c.claim in terms else (c.p(), LEVEL)))
        for c in contrasts
    ]


def check_primary(claims: Sequence[Claim]) -> None:
    chosen = [claim.text for claim in claims if claim.primary]
    if claims and len(chosen) != 1:
        raise CoupledQKError(
            f"an experiment declares one primary claim before it runs, given {len(chosen)}: set primary = true on one of them"
        )


@dataclass(frozen=True)
class _Contrast:
    claim: Claim
    estimate: Estimate | SpreadRatio
    n: tuple[int, int]
    note: str

    def p(self) -> float:
        if self.claim.kind == "equal" and isinstance(self.estimate, Estimate):
            return self.estimate.p_equal(self.claim.margin)
        return self.estimate.p()

    def evidence(self, p: float, level: float) -> Evidence:
        """Two one-sided tests at a level go with the interval that leaves out this level on either side."""
        claim, estimate = self.claim, self.estimate
        confidence = 1 - 2 * level if claim.kind == "equal" else 1 - level
        low, high = estimate.interval(confidence)
        if isinstance(estimate, SpreadRatio):
            effect, low, high, smallest = estimate.value - 1, low - 1, high - 1, 1 - estimate.smallest(level)
        else:
            effect = estimate.value
            smallest = estimate.smallest_margin(level) if claim.kind == "equal" else estimate.smallest(level)
        return Evidence(effect, (low, high), confidence, p, self.n, len(claim.groups) == 1, smallest)


def _contrast(claim: Claim, samples: Samples) -> _Contrast | Verdict:
    """The estimate of the claim's effect, or the verdict that there is none."""
    values, note = _values(claim, samples)
    try:
        variant, baseline, *elsewhere = values
        if elsewhere:
            ours, theirs = relative_differences(variant, baseline), relative_differences(*elsewhere)
        else:
            unit = baseline_mean(baseline)
            ours, theirs = [x / unit for x in variant], [x / unit for x in baseline]
        method = spread_ratio if claim.kind == "less_variable" else paired if len(claim.groups) == 1 else welch
        return _Contrast(claim, method(ours, theirs), (len(ours), len(theirs)), note)
    except UntestableError as error:
        return Verdict(claim, "cannot tell with this many seeds", f"{error}{note}.", None)


def _values(claim: Claim, samples: Samples) -> tuple[list[list[float]], str]:
    """Each cell's values, of the seeds that its whole group has; and a note on the runs that are lacking."""
    values, lacking = [], []
    for group in claim.groups:
        found = {label: samples.get(label, {}) for label in group}
        seeds = sorted(set().union(*found.values()))
        whole = [seed for seed in seeds if all(math.isfinite(runs.get(seed, math.nan)) for runs in found.values())]
        values += [[found[label][seed] for seed in whole] for label in group]
        for label, runs in found.items():
            missing = [seed for seed in seeds if seed not in runs]
            diverged = [seed for seed in runs if math.isnan(runs[seed])]
            never = [seed for seed in runs if math.isinf(runs[seed])]
            lacking += [f"{label} has no run{_with_seeds(missing)}"] if missing or not runs else []
            lacking += [f"{label} diverged{_with_seeds(diverged)}"] if diverged else []
            lacking += [f"{label} never got there{_with_seeds(never)}, left out in its favour"] if never else []
    return values, "; " + ", ".join(lacking) if lacking else ""


def _with_seeds(seeds: Sequence[int]) -> str:
    return f" with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""


def _verdict(contrast: _Contrast, p: float, level: float) -> Verdict:
    claim, evidence = contrast.claim, contrast.evidence(p, level)
    outcome = _outcome(claim, evidence)
    sentence = f"{_measured(claim, evidence)}: {_reason(claim, evidence, outcome)}{contrast.note}."
    return Verdict(claim, outcome, sentence, evidence)


def _outcome(claim: Claim, evidence: Evidence) -> Outcome:
    low, high = evidence.interval
    if claim.kind == "equal":
        if -claim.margin <= low and high <= claim.margin:
            return "holds here"
        beyond = low > claim.margin or high < -claim.margin
        return "does not hold here" if beyond else "cannot tell with this many seeds"
    if claim.side < 0:
        low, high = -high, -low
    if low > 0:
        return "holds here"
    return "does not hold here" if high < abs(claim.paper_effect or 0) else "cannot tell with this many seeds"


def _measured(claim: Claim, evidence: Evidence) -> str:
    """For example: hamiltonian is −1.70% against standard (95% interval −2.40% to −1.00%, 5 paired seeds, p = 0.003)."""
    effect = _show(claim, evidence.effect)
    if claim.kind == "less_variable":
        what = f"the standard deviation of {claim.variant} is {effect} that of {claim.baseline}"
    elif claim.elsewhere:
        there = "{} on {}".format(*claim.elsewhere)
        what = f"the effect of {claim.variant} on {claim.baseline} less that of {there} is {effect}"
    else:
        what = f"{claim.variant} is {effect} against {claim.baseline}"
    low, high = (_show(claim, end) for end in evidence.interval)
    n_ours, n_theirs = evidence.n
    seeds = f"{n_ours} paired seeds" if evidence.paired else f"{n_ours} and {n_theirs} seeds"
    p = "p < 0.001" if evidence.p < 0.001 else f"p = {evidence.p:.3f}"
    return f"{what} ({100 * evidence.confidence:.3g}% interval {low} to {high}, {seeds}, {p})"


def _reason(claim: Claim, evidence: Evidence, outcome: Outcome) -> str:
    if claim.kind == "equal":
        margin = f"the margin of ±{100 * claim.margin:.3g}%"
        if outcome == "holds here":
            return f"within {margin}"
        if outcome == "does not hold here":
            return f"beyond {margin}"
        smallest = f"the smallest that so many seeds show four times in five is ±{evidence.smallest:.2%}"
        return f"not within {margin} and not beyond; {smallest}"
    low, high = evidence.interval
    paper, as_paper = "", False
    if claim.paper_effect is not None:
        paper, as_paper = f"the paper's {_show(claim, claim.paper_effect)}", low <= claim.paper_effect <= high
    if outcome == "holds here":
        aside = f", with {paper} {'inside' if as_paper else 'outside'} the interval" if paper else ""
        return f"on the claimed side{aside}"
    if outcome == "does not hold here":
        return "on the other side" if low > 0 or high < 0 else f"{paper} is excluded, no effect is not"
    inside = f"no effect and {paper} are both" if as_paper else "no effect is"
    smallest = (
        f"the smallest that so many seeds show four times in five is {_show(claim, claim.side * evidence.smallest)}"
    )
    return f"{inside} inside the interval; {smallest}"


def _show(claim: Claim, effect: float) -> str:
    if claim.kind == "less_variable":
        return f"{1 + effect:.2f}×"
    unit = " points" if claim.kind == "interaction" else "%"
    return f"{100 * effect:+.2f}{unit}".replace("-", "−")
