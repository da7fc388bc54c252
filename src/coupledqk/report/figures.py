"""Writes the charts of a report as SVG files and, if matplotlib is installed, the curves as PDF files, too."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ..errors import CoupledQKError
from ..files import atomic_path, write_atomic
from ..outcome import Outcome
from .claims_chart import claims_chart
from .curves import Panel
from .ladder import charts

CLAIMS = "claims"
"""Name of the chart of claims, which covers all experiments of a report."""


def figure_name(outcome: Outcome, panel: Panel) -> str:
    """The name of a chart's file without its ending. It contains no folder, whatever an outcome file contains."""
    return f"{Path(outcome.name).name}-{panel.name}"


def write_figures(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Writes the chart of claims and every chart of an experiment, named by experiment and kind, and returns the paths."""
    names = [Path(outcome.name).name for outcome in outcomes]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise CoupledQKError(
            f"--figures {folder}: two outcomes are named {repeated[0]}, so their charts would be the same files: merge them "
            "with --merge, or report on one at a time"
        )
    can_print = importlib.util.find_spec("matplotlib") is not None
    written = []
    if claims := claims_chart(outcomes):
        write_atomic(svg := folder / f"{CLAIMS}.svg", claims)
        written.append(svg)
    for outcome in outcomes:
        for panel in charts(outcome):
            path = folder / figure_name(outcome, panel)
            write_atomic(svg := path.with_name(f"{path.name}.svg"), panel.svg())
            written.append(svg)
            if can_print:
                _write_pdf(panel, pdf := path.with_name(f"{path.name}.pdf"))
                written.append(pdf)
    return written


def _write_pdf(panel: Panel, path: Path) -> None:
    from ..analysis.style import look, new_figure, styled

    with styled():
        from matplotlib.ticker import LogFormatter

        figure = new_figure(width=5.8)
        axes = figure.subplots()
        for place, series in enumerate(panel.series):
            xs, ys = zip(*series.points, strict=True)
            style = look(place if series.look is None else series.look)
            axes.plot(xs, ys, label=series.name, markevery=max(1, len(xs) // 8), **style)
            if series.band and series.bars:
                axes.vlines(xs, *zip(*series.band, strict=True), color=style["color"], linewidth=1)
            elif series.band:
                lows, highs = zip(*series.band, strict=True)
                axes.fill_between(xs, lows, highs, color=style["color"], alpha=0.18, linewidth=0)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter())
        figure.legend(loc="outside right upper", fontsize=7.5)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="pdf", metadata={"CreationDate": None})
