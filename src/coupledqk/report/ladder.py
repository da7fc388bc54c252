"""The effect as a function of model size, as a table and a chart."""

import math
from collections.abc import Iterator

from ..outcome import Ladder, Outcome, Rung
from ..palette import COLOURS
from .chart import Series
from .curves import Panel, panels
from .page import number
from .tables import NOTHING, Table, interval, percent


def charts(outcome: Outcome) -> list[Panel]:
    """All charts of an outcome: the effect by model size, if it was measured, and the learning curves."""
    ladder = ladder_panel(outcome)
    return [*([ladder] if ladder else []), *panels(outcome)]


def ladder_table(outcome: Outcome) -> Table:
    """A table with a row for every rung, and one for the slope of every ladder that has one."""
    head = ("", "size", "parameters", "effect", "95% interval", "pairs of seeds")
    rows = tuple(row for ladder in outcome.ladders for row in _rows(ladder))
    return Table(f"{outcome.title}: effect against size", head, rows, "llrrrr")


def _rows(ladder: Ladder) -> Iterator[tuple[str, ...]]:
    for rung in ladder.rungs:
        ends = interval(rung.interval) if rung.interval else NOTHING
        yield ladder.name, rung.size, number(rung.parameters), percent(rung.effect), ends, str(rung.n)
    if ladder.slope is not None and ladder.slope_interval is not None:
        pairs = sum(rung.n for rung in _fitted(ladder))
        ends = interval(ladder.slope_interval, _points)
        yield ladder.name, "slope per tenfold size", "", _points(ladder.slope), ends, str(pairs)


def _fitted(ladder: Ladder) -> list[Rung]:
    """The rungs that the slope is fitted to: those with more than one pair."""
    return [rung for rung in ladder.rungs if rung.n > 1]


def _points(share: float) -> str:
    return percent(share).replace("%", " points")


def ladder_panel(outcome: Outcome) -> Panel | None:
    """A chart of the effects of every ladder with their intervals, and the fitted lines."""
    series = []
    for look, ladder in enumerate(ladder for ladder in outcome.ladders if ladder.rungs):
        points = [(float(rung.parameters), 100 * rung.effect) for rung in ladder.rungs]
        ends = [rung.interval or (rung.effect, rung.effect) for rung in ladder.rungs]
        band = [(100 * low, 100 * high) for low, high in ends]
        series.append(Series(ladder.name, points, band, look, bars=True))
        if ladder.slope is not None and len(ladder.rungs) > 2:  # through two rungs it is the line that connects them
            same_colour = look + len(COLOURS)
            series.append(Series(f"{ladder.name}, fitted", _line(ladder, ladder.slope), look=same_colour))
    if not series:
        return None
    title = f"{outcome.metric.name.capitalize()} against standard, by model size"
    return Panel("ladder", title, "effect, %, with its 95% interval", series, x_label="parameters", log_x=True)


def _line(ladder: Ladder, slope: float) -> list[tuple[float, float]]:
    """The two end points of the fitted line. A least-squares line passes through the mean of the pairs that it is fitted to."""
    rungs = _fitted(ladder)
    pairs = sum(rung.n for rung in rungs)
    x = sum(rung.n * math.log10(rung.parameters) for rung in rungs) / pairs
    y = sum(rung.n * rung.effect for rung in rungs) / pairs
    ends = (ladder.rungs[0].parameters, ladder.rungs[-1].parameters)
    return [(float(end), 100 * (y + slope * (math.log10(end) - x))) for end in ends]
