"""The effect of coupling as a function of model size: the effect at each size, and a fitted slope. Torch-free."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, variance

from ..outcome import Ladder, LadderSpec, Rung
from ..statistics import Estimate, UntestableError, interval_of_mean, relative_differences


def fit_ladder(spec: LadderSpec, samples: Mapping[str, Mapping[int, float]], parameters: Mapping[str, int]) -> Ladder:
    """The effect at each size, and the slope of the effect against the logarithm of the size.

    Effects are relative differences of pairs of runs with the same seed. The slope is a least-squares fit to all pairs, in
    effect per tenfold size.
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
        points.append((math.log10(count), effects))
        rungs.append(Rung(size, count, fmean(effects), interval_of_mean(effects), len(effects)))
    slope = slope_of(points)
    if slope is None:
        return Ladder(spec.name, tuple(rungs), spec=spec)
    return Ladder(spec.name, tuple(rungs), slope.value, slope.interval(), spec)


def slope_of(rungs: Sequence[tuple[float, Sequence[float]]]) -> Estimate | None:
    """The least-squares slope of a straight line through all effects y, given as (x, several y); None if it cannot be tested.

    The noise may differ between rungs, as it does between small and large models: the standard error is computed from the
    variance of each rung, with Satterthwaite's degrees of freedom. For two rungs this is Welch's t. Rungs with a single effect,
    whose variance is unknown, are not used.
    """
    rungs = [(x, effects) for x, effects in rungs if len(effects) > 1]
    if len({x for x, _ in rungs}) < 2:
        return None
    mean_x = fmean(x for x, effects in rungs for _ in effects)
    spread = math.fsum(len(effects) * (x - mean_x) ** 2 for x, effects in rungs)
    slope, parts = 0.0, []
    for x, effects in rungs:
        weight = len(effects) * (x - mean_x) / spread
        slope += weight * fmean(effects)
        parts.append((weight**2 * variance(effects) / len(effects), len(effects) - 1))
    total = math.fsum(part for part, _ in parts)
    if total == 0:
        return None
    return Estimate(slope, math.sqrt(total), total**2 / math.fsum(part**2 / df for part, df in parts))
