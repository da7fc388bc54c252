"""Charts of benchmark results. Torch-free."""

from collections.abc import Callable, Sequence

from ..report.chart import Series, line_chart
from .records import DecodeResult, Quartiles, Result, Speed, ThroughputRow


def charts(result: Result) -> dict[str, str]:
    """SVG by the suffix of its file's name."""
    if isinstance(result, DecodeResult):
        return {"": speed_by_round([(row.name, row.decode) for row in result.rows], result.baseline, "Decoding")}
    rows = result.rows
    if result.what == "throughput":
        return {"": speed_by_round([(row.name, row.training) for row in rows], result.baseline, "Forward + backward")}
    by_length = result.what == "lengths"

    def against(y_label: str, value: Callable[[ThroughputRow], Quartiles]) -> str:
        return growth(rows, by_length, y_label, value)

    return {
        "-time": against("seconds of forward + backward", lambda row: Quartiles.of(row.training.seconds)),
        "-speed": against("relative speed", lambda row: row.training.relative),
        "-memory": against("peak memory, MB", lambda row: Quartiles.of([row.memory.peak_mb])),
    }


def speed_by_round(speeds: Sequence[tuple[str, Speed]], baseline: str, title: str) -> str:
    """Every contender's speed in every round, relative to the baseline's."""
    base = dict(speeds)[baseline].seconds
    series = []
    for name, speed in speeds:
        ratios = [b / own for b, own in zip(base, speed.seconds, strict=True)]
        series.append(Series(name, list(enumerate(ratios, start=1))))
    return line_chart(series, "round", f"speed relative to {baseline}", title=title)


def growth(
    rows: Sequence[ThroughputRow], by_length: bool, y_label: str, value: Callable[[ThroughputRow], Quartiles]
) -> str:
    """A curve with a band for each contender, against the sequence length or the number of integration steps."""
    x_label = "tokens in a sequence" if by_length else "steps n"
    curves: dict[str, list[tuple[int, Quartiles]]] = {}
    for row in rows:
        x = row.seq_len if by_length else row.n_steps
        if x is not None:
            curves.setdefault(row.name, []).append((x, value(row)))
    series = [
        Series(name, [(x, y.median) for x, y in curve], [(y.low, y.high) for _, y in curve])
        for name, curve in curves.items()
    ]
    return line_chart(series, x_label, y_label, by_length, by_length, title=f"{y_label} against {x_label}")
