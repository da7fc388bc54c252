"""Charts of benchmark results. Torch-free."""

from collections.abc import Callable, Sequence

from ..report.chart import Series, line_chart
from .records import DecodeResult, Quartiles, Result, Speed, ThroughputResult, ThroughputRow
from .sweeps import SWEEPS


def charts(result: Result) -> dict[str, str]:
    """SVG charts of a result, keyed by the suffix of the file name."""
    if isinstance(result, DecodeResult):
        return {"": speed_by_round([(row.name, row.decode) for row in result.rows], result.baseline, "Decoding")}
    if result.what == "throughput":
        speeds = [(row.name, row.training) for row in result.rows]
        return {"": speed_by_round(speeds, result.baseline, "Forward + backward")}
    found = {
        "-time": growth(result, "seconds of forward + backward", lambda row: Quartiles.of(row.training.seconds)),
        "-speed": growth(result, "relative speed", lambda row: row.training.relative),
    }
    if all(row.memory for row in result.rows):
        found["-memory"] = growth(result, "peak memory, MB", peak)
    return found


def peak(row: ThroughputRow) -> Quartiles:
    assert row.memory is not None
    return Quartiles.of([row.memory.peak_mb])


def speed_by_round(speeds: Sequence[tuple[str, Speed]], baseline: str, title: str) -> str:
    """Speed of each contender relative to the baseline by round, or by launch if there are several launches."""
    base = dict(speeds)[baseline].seconds
    series = []
    for name, speed in speeds:
        ratios = [b / own for b, own in zip(base, speed.seconds, strict=True)]
        series.append(Series(name, list(enumerate(speed.by_launch if len(speed.by_launch) > 1 else ratios, start=1))))
    x_label = "launch" if len(speeds[0][1].by_launch) > 1 else "round"
    return line_chart(series, x_label, f"speed relative to {baseline}", title=title)


def growth(result: ThroughputResult, y_label: str, value: Callable[[ThroughputRow], Quartiles]) -> str:
    """One curve with a quartile band per contender, plotted against the swept quantity."""
    sweep = SWEEPS[result.what]
    curves: dict[str, list[tuple[int, Quartiles]]] = {}
    for row in result.rows:
        x = sweep.x(row)
        if x is not None:
            curves.setdefault(row.name, []).append((x, value(row)))
    series = [
        Series(name, [(x, y.median) for x, y in curve], [(y.low, y.high) for _, y in curve])
        for name, curve in curves.items()
    ]
    return line_chart(
        series, sweep.label, y_label, sweep.log_log, sweep.log_log, title=f"{y_label} against {sweep.label}"
    )
