"""A learning-rate sweep as an experiment. Torch-free."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..config import RunConfig
from ..errors import CoupledQKError
from ..files import write_atomic
from ..outcome import Outcome, Row
from ..report.chart import Series, line_chart
from ..run_folder import variant_name
from ..schema import change
from .experiment import Cell, Experiment, ListedScale

SCALE = "lr"


def sweep_experiment(base: RunConfig, lrs: Sequence[float], seeds: Sequence[int] = ()) -> Experiment:
    """An experiment that trains the same run with each of several peak learning rates, by default with the seed of `base`."""
    lrs = sorted(set(lrs))
    if len(lrs) < 2:
        raise CoupledQKError(f"--lrs {' '.join(map(str, lrs))}: expected at least two learning rates to compare")
    cells = tuple(
        Cell(f"{lr:g}", seed, change(base, {"lr": lr, "seed": seed}))
        for lr in lrs
        for seed in dict.fromkeys(seeds or (base.seed,))
    )
    name = variant_name(base)
    caption = f"Each row is a peak learning rate of {name}; all other settings are equal."
    scale = ListedScale(base.task.measure, cells)
    title, source, command = f"Learning rate of {name}", "your own settings", "coupledqk sweep"
    return Experiment("sweep", title, source, caption, {SCALE: scale}, command=command)


def best_row(outcome: Outcome) -> Row:
    """The row of the learning rate with the best mean. Learning rates with a diverged run are excluded."""
    sign = 1 if outcome.metric.better == "lower" else -1
    good = [row for row in outcome.rows if row.mean is not None and row.n == len(row.seeds)]
    if not good:
        raise CoupledQKError("no learning rate finished without diverging: try smaller --lrs or a longer --warmup")
    return min(good, key=lambda row: sign * (row.mean if row.mean is not None else math.inf))


def at_edge(outcome: Outcome) -> bool:
    """Whether the best learning rate is the lowest or the highest one tried, so that a better one may exist outside the
    range."""
    return best_row(outcome) in (outcome.rows[0], outcome.rows[-1])


def draw_sweep(outcome: Outcome, path: Path) -> None:
    """Writes the mean of the metric against the learning rate as an SVG file."""
    points = [(float(row.label), row.mean) for row in outcome.rows if row.mean is not None]
    chart = line_chart(
        [Series(outcome.metric.name, points)],
        "peak learning rate",
        f"best validation {outcome.metric.name}",
        log_x=True,
        title=outcome.title,
    )
    write_atomic(path, chart)
