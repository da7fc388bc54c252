"""Learning curves of an outcome: the mean over seeds, with a band from the lowest seed to the highest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..outcome import CellRecord, Outcome
from .axis import drawable
from .baselines import baseline_series, context_series, models_of_rows
from .chart import Series, line_chart

MOST_CURVES = 6
STEP, LOSS = 0, 2

Curve = Mapping[float, float]
"""Values of a curve by step."""
Curves = dict[str, dict[int, Curve]]
"""Curves by the label of the row and the seed."""


@dataclass(frozen=True)
class Panel:
    """One chart, drawn by `svg` here and by `report.figures` for print."""

    name: str
    """Part of the file name of the figure."""
    title: str
    y_label: str
    series: list[Series]
    log_y: bool = False
    x_label: str = "step"
    log_x: bool = False

    def svg(self) -> str:
        return line_chart(self.series, self.x_label, self.y_label, self.log_x, self.log_y, self.title)


def panels(outcome: Outcome) -> list[Panel]:
    """Charts of the task's measure at validation, its change against the baseline, the training loss, and the loss by context.

    Rows that share a baseline are drawn together, a few per chart. A row has the same colour and marker in all charts.
    """
    measure, log = outcome.task_measure, outcome.task_measure.log_scale
    train, valid = _curves(outcome, "train", LOSS), _curves(outcome, "valid", -1)
    models = models_of_rows(outcome)
    looks = {row.label: place for place, row in enumerate(outcome.rows)}
    found = []
    for number, labels in enumerate(groups := list(_groups(outcome)), 1):
        ending = f"-{number}" if len(groups) > 1 else ""
        for name, title, y_label, curves, is_log in (
            ("validation", f"Validation {measure.name}", f"{measure.name}{', log scale' * log}", valid, log),
            (
                "change",
                f"Validation {measure.name} against {labels[0]}",
                "change, %",
                _changes(outcome, valid, labels[0]),
                False,
            ),
            ("training", "Training loss", f"loss, {measure.loss_unit}", train, False),
        ):
            series = [_series(label, curves.get(label, {}), looks[label], is_log) for label in labels]
            drawn = [one for one in series if one]
            if name == "validation":
                drawn += baseline_series([m for m in models if m.name in labels], measure, drawn)
            if drawn:
                found.append(Panel(name + ending, title, y_label, drawn, is_log))
        if by_context := context_series(model for model in models if model.name in labels):
            found.append(context_panel(by_context, ending))
    return found


def context_panel(series: list[Series], ending: str = "") -> Panel:
    return Panel(
        f"context{ending}",
        "Loss against context",
        "loss, nats per token",
        series,
        x_label="tokens of context",
        log_x=True,
    )


def _groups(outcome: Outcome) -> Iterator[list[str]]:
    """Groups of labels, one per chart: a baseline and some of the rows compared with it."""
    baselines = outcome.baselines
    held: dict[str | None, list[str]] = {}
    for label in (row.label for row in outcome.rows):
        if label not in baselines.values() or label in baselines:
            held.setdefault(baselines.get(label), []).append(label)
    for baseline, labels in held.items():
        first = [baseline] if baseline in {row.label for row in outcome.rows} else []
        for start in range(0, len(labels), MOST_CURVES - 1):
            yield [label for label in [*first, *labels[start : start + MOST_CURVES - 1]] if label is not None]


def _curves(outcome: Outcome, kind: str, column: int) -> Curves:
    """The curves of the finished cells of each row or, if none is finished, of those that have started."""
    curves: Curves = {}
    for row in outcome.rows:
        cells = [cell for cell in outcome.cells if cell.label == row.label]
        for cell in [cell for cell in cells if cell.status == "finished"] or cells:
            if points := _points(cell, kind, column):
                curves.setdefault(row.label, {})[cell.seed] = points
    return curves


def _points(cell: CellRecord, kind: str, column: int) -> Curve:
    return {point[STEP]: point[column] for point in getattr(cell, kind) if drawable(point[column], log=False)}


def _changes(outcome: Outcome, curves: Curves, baseline: str) -> Curves:
    """Differences from a baseline of the rows that are compared with it, at the same seed and step, in percent of the
    baseline's value."""
    changes: Curves = {}
    for label in (label for label, other in outcome.baselines.items() if other == baseline):
        ours, theirs = curves.get(label, {}), curves.get(baseline, {})
        for seed in ours.keys() & theirs.keys():
            steps = [step for step in ours[seed] if theirs[seed].get(step)]
            changes.setdefault(label, {})[seed] = {s: 100 * (ours[seed][s] / theirs[seed][s] - 1) for s in steps}
    return changes


def _series(label: str, runs: Mapping[int, Curve], look: int, log: bool) -> Series | None:
    """The mean and range over seeds, at the steps that all seeds have; None if there are none."""
    curves = list(runs.values())
    steps = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
    values = {step: [curve[step] for curve in curves] for step in steps}
    values = {step: found for step, found in values.items() if all(drawable(value, log) for value in found)}
    if not values:
        return None
    middle: Sequence[tuple[float, float]] = [(step, fmean(found)) for step, found in values.items()]
    band = [(min(found), max(found)) for found in values.values()] if len(curves) > 1 else ()
    return Series(label, middle, band, look)
