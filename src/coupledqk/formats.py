"""Formatting of values, effects, intervals and p-values for sentences, tables, pages and the terminal. Torch-free."""

import math
from collections.abc import Callable, Sequence

from .measure import Measure
from .outcome import Claim, Evidence

NOTHING = "–"


def number(value: float | None, decimals: int = 0) -> str:
    """A measured value, or a dash if there is none."""
    if value is None:
        return NOTHING
    return f"{value:,.{decimals}f}" if math.isfinite(value) else "not finite"


def percent(share: float | None) -> str:
    """A relative effect with its sign: −1.70%."""
    return NOTHING if share is None or not math.isfinite(share) else f"{100 * share:+.2f}%".replace("-", "−")


def effect(claim: Claim, size: float) -> str:
    """An effect in the claim's own unit: percent, a ratio of standard deviations, or percentage points."""
    if claim.kind == "less_variable":
        return f"{1 + size:.2f}×"
    return percent(size).replace("%", " points") if claim.kind == "interaction" else percent(size)


def detectable(claim: Claim, evidence: Evidence) -> str:
    """The absolute effect, or the equivalence margin, that a test with these seeds detects with 80% power."""
    if claim.kind == "less_variable":
        return effect(claim, -evidence.detectable)
    return effect(claim, evidence.detectable).lstrip("+")


def interval(ends: Sequence[float], show: Callable[[float], str] = percent) -> str:
    """Both ends of an interval: −2.40% to −1.00%, or −2.84 to −0.23 points."""
    low, high = map(show, ends)
    return f"{low.removesuffix(' points')} to {high}"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def uncertainty(claim: Claim, evidence: Evidence) -> str:
    """The interval, the number of seeds and the p-value: 95% interval −2.40% to −1.00%, 5 paired seeds, p = 0.003."""
    ends = interval(evidence.interval, lambda end: effect(claim, end))
    ours, theirs = evidence.n
    seeds = f"{ours} paired seeds" if evidence.paired else f"{ours} and {theirs} seeds"
    return f"{100 * evidence.confidence:.3g}% interval {ends}, {seeds}, {p_value(evidence.p)}"


def mean_and_std(measure: Measure, mean: float | None, std: float | None, n: int | None = None) -> str:
    """A mean with its standard deviation and the number of seeds: 24.22 ± 0.12 (3)."""
    text = measure.show(mean)
    if mean is not None and std is not None and math.isfinite(std):
        text += f" ± {std:.{len(text.partition('.')[2])}f}"
    return f"{text} ({n})" if n else text
