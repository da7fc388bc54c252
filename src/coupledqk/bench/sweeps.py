"""Benchmark sweeps: the quantities they vary, and how time and memory scale with them. Torch-free; uses SciPy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import CoupledQKError
from ..statistics.estimates import student_quantile
from .records import ThroughputResult, ThroughputRow


@dataclass(frozen=True)
class Sweep:
    label: str
    """Axis label of the quantity that is varied."""
    x: Callable[[ThroughputRow], int | None]
    log_log: bool
    """Whether to fit a power law (linear in logarithms) instead of a linear function."""


SWEEPS = {
    "lengths": Sweep("tokens in a sequence", lambda row: row.seq_len, log_log=True),
    "n-steps": Sweep("steps n", lambda row: row.n_steps, log_log=False),
    "widths": Sweep("width of the model", lambda row: row.d_model, log_log=True),
    "depths": Sweep("layers", lambda row: row.n_layers, log_log=False),
}
"""Sweeps by the kind of result."""


@dataclass(frozen=True)
class Slope:
    """A least-squares slope with a 95% interval computed from the residuals, which is wide if the fit is poor.

    A log-log slope is an exponent. A linear slope is the increase for each additional step or layer, as a share of the
    baseline's value at the smallest point.
    """

    name: str
    quantity: Literal["time", "memory"]
    scale: Literal["log-log", "linear"]
    slope: float
    low: float
    high: float
    points: int


def slopes(result: ThroughputResult) -> list[Slope]:
    """Slopes of time and memory for every contender with at least three points."""
    if result.what not in SWEEPS:
        raise CoupledQKError(
            f"a {result.what} result is not a sweep: use a result of --lengths, --n-steps, --widths or --depths"
        )
    found, x_of = [], SWEEPS[result.what].x
    for quantity, value in QUANTITIES.items():
        values = [(row, value(row)) for row in result.rows]
        baseline = [(x_of(row) or 0, y) for row, y in values if row.name == result.baseline]
        _, unit = min(baseline, key=lambda point: point[0], default=(0, None))
        for name in dict.fromkeys(row.name for row in result.rows):
            points = [(x_of(row), y) for row, y in values if row.name == name]
            known = [(float(x), y) for x, y in points if x is not None and y is not None]
            if unit is not None and len({x for x, _ in known}) >= 3:
                found.append(fit(name, quantity, known, unit, SWEEPS[result.what].log_log))
    return found


def peak_mb(row: ThroughputRow) -> float | None:
    return row.memory and row.memory.peak_mb


QUANTITIES: dict[Literal["time", "memory"], Callable[[ThroughputRow], float | None]] = {
    "time": lambda row: row.batch * row.seq_len / row.training.tokens_per_second,
    "memory": peak_mb,
}


def fit(
    name: str, quantity: Literal["time", "memory"], points: Sequence[tuple[float, float]], unit: float, log_log: bool
) -> Slope:
    xs = [math.log(x) if log_log else x for x, _ in points]
    ys = [math.log(y) if log_log else y / unit for _, y in points]
    n, mean_x, mean_y = len(points), math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    residuals = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    margin = student_quantile(0.975, n - 2) * math.sqrt(residuals / (n - 2) / spread)
    return Slope(name, quantity, "log-log" if log_log else "linear", slope, slope - margin, slope + margin, n)
