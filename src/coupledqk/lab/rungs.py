"""The effect of coupling as a function of model size: the effect at each size, and a fitted slope. Torch-free."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from ..outcome import Ladder, LadderSpec, Rung
from ..statistics import Estimate, UntestableError, paired, relative_differences


def fit_ladder(spec: LadderSpec, samples: Mapping[str, Mapping[int, float]], parameters: Mapping[str, int]) -> Ladder:
    """The effect at each size, and the slope of the effect against the logarithm of the size.

    Effects are relative differences of pairs of runs with the same seed. The slope is an ordinary least-squares fit to all
    pairs, in effect per tenfold size.
    """
    rungs, points = [], []
    for size in spec.sizes:
        ours, theirs = (samples.get(label.format(size=size), {}) for label in (spec.variant, spec.baseline))
        count = parameters.get(spec.baseline.format(size=size))
        seeds = [seed for seed in ours if math.isfinite(ours[seed] - theirs.get(seed, math.nan))]
        if not seeds or count is None:
            continue
        try:
            effects = relative_differences([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
        except UntestableError:  # an accuracy of 0
            continue
        points += [(math.log10(count), effect) for effect in effects]
        rungs.append(Rung(size, count, fmean(effects), _interval(effects), len(effects)))
    slope = slope_of(points)
    if slope is None:
        return Ladder(spec.name, tuple(rungs), spec=spec)
    return Ladder(spec.name, tuple(rungs), slope.value, slope.interval(), spec)


def _interval(effects: Sequence[float]) -> tuple[float, float] | None:
    try:
        return paired(effects, [0.0] * len(effects)).interval()
    except UntestableError:
        return None


def slope_of(points: Sequence[tuple[float, float]]) -> Estimate | None:
    """The least-squares slope of a straight line through points (x, y); None if it cannot be tested."""
    if len({x for x, _ in points}) < 2 or len(points) < 3:
        return None
    mean_x, mean_y = (fmean(column) for column in zip(*points, strict=True))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    residuals = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    df = len(points) - 2
    return Estimate(slope, math.sqrt(residuals / df / spread), df) if residuals > 0 else None
