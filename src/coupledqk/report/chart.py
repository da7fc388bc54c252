"""Line charts as SVG, which can be embedded in a page or written to a file."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import CoupledQKError
from ..palette import COLOURS, DARK_COLOURS
from .axis import Axis, drawable

Point = tuple[float, float]

WIDTH, PLOT_HEIGHT, LINE_HEIGHT, MARGIN = 480, 220, 24, 8
LEFT, RIGHT, ABOVE, BELOW = 64, 18, 44, 56
# Text widths assume the larger font used on phones.
KEY_WIDTH, LETTER_WIDTH, LONGEST_NAME = 54, 9, 32
MOST_MARKERS = 12
BAR_SHIFT = 4
"""Number of pixels by which each series with bars is moved, so that bars of equal x do not overlap."""

# Series differ in dash and marker as well as in colour, for monochrome print.
DASHES = ["none", "8 3", "2 3", "10 3 2 3", "5 2"]
MARKERS = [
    "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "m-2.9-2.9h5.8v5.8h-5.8z",
    "m0-3.9l3.6 6.4h-7.2z",
    "m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    "m0 3.9l3.6-6.4h-7.2z",
    "m-4-1.2h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8z",
]


def _palette(colours: Sequence[str]) -> str:
    return ";".join(f"--colour-{i}:{colour}" for i, colour in enumerate(colours))


STYLE = f"""
.chart{{--paper:#fff;--ink:#222;--soft:#666;--rule:#e6e6e4;{_palette(COLOURS)};font:13px system-ui,sans-serif}}
@media screen and (prefers-color-scheme:dark){{
.chart{{--paper:#16181b;--ink:#e2e2df;--soft:#a0a09c;--rule:#303338;{_palette(DARK_COLOURS)}}}}}
@media (max-width:430px){{.chart{{font-size:17px}}}}
.chart text{{fill:var(--ink)}} .chart .soft{{fill:var(--soft)}} .chart .title{{font-weight:600}}
.chart .end{{text-anchor:end}} .chart .middle{{text-anchor:middle}}
.chart .paper{{fill:var(--paper)}} .chart .rules{{stroke:var(--rule)}} .chart .axis{{stroke:var(--soft)}}
.chart .line{{fill:none;stroke:var(--colour);stroke-width:1.8;stroke-linejoin:round}}
.chart .marks{{fill:var(--colour)}} .chart .band{{fill:var(--colour);opacity:.18}}
.chart .bars{{fill:none;stroke:var(--colour);stroke-width:1.2}}
"""


@dataclass(frozen=True)
class Series:
    """A named curve through points (x, y), optionally with a band (low, high) around each point."""

    name: str
    points: Sequence[Point]
    band: Sequence[Point] = ()
    look: int | None = None
    """Index of the colour, dash and marker; by default the position among the series."""
    bars: bool = False
    """Whether the band is drawn as a vertical bar at each point instead of an area."""


def line_chart(
    series: Sequence[Series], x_label: str, y_label: str, log_x: bool = False, log_y: bool = False, title: str = ""
) -> str:
    """Draws a line chart. Points that cannot be drawn (NaN, infinite, not positive on a log axis) are omitted."""
    if not series:
        raise CoupledQKError("a chart needs at least one series")
    looks = [place if curve.look is None else curve.look for place, curve in enumerate(series)]
    curves = [_drawable(curve, log_x, log_y) for curve in series]
    legend, top = _legend([curve.name for curve in curves], looks, 2 * LINE_HEIGHT if title else LINE_HEIGHT)
    bottom, height = top + PLOT_HEIGHT, top + PLOT_HEIGHT + BELOW
    heights = [y for curve in curves for _, y in curve.points]
    heights += [edge for curve in curves for pair in curve.band for edge in pair]
    x = Axis.over([x for curve in curves for x, _ in curve.points], LEFT, WIDTH - RIGHT, log_x)
    y = Axis.over(heights, bottom, top, log_y)
    name = title or f"{y_label} against {x_label}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" data-x-label="{html.escape(x_label)}">',
        f"<title>{html.escape(name)}</title><desc>{html.escape(_description(curves, x_label))}</desc>",
        f'<style>{STYLE}</style><rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{MARGIN}" y="20">{html.escape(title)}</text>' if title else "",
        legend,
        _frame(x, y, x_label, y_label),
        *(_curve(curve, look, x, y) for curve, look in zip(curves, looks, strict=True)),
        "</svg>",
    ]
    return printable("\n".join(parts))


def chart_grid(charts: Sequence[str], columns: int) -> str:
    """Arranges charts in rows of `columns` as one SVG."""
    rows = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    parts, y = [], 0
    for row in rows:
        for column, chart in enumerate(row):
            parts.append(chart.replace("<svg ", f'<svg x="{column * WIDTH}" y="{y}" ', 1))
        y += max(_height(chart) for chart in row)
    width = columns * WIDTH
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    return "\n".join([start, *parts, "</svg>"])


def _height(chart: str) -> int:
    found = re.search(r' height="(\d+)"', chart)
    assert found is not None
    return int(found[1])


def printable(text: str) -> str:
    """Replaces characters that XML forbids, which a name or a generated text may contain."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _drawable(curve: Series, log_x: bool, log_y: bool) -> Series:
    if curve.band and len(curve.band) != len(curve.points):
        raise CoupledQKError(
            f"series {curve.name!r} has {len(curve.points)} points, but its band has {len(curve.band)}: give one for each point"
        )
    band = curve.band or [(y, y) for _, y in curve.points]
    kept = [
        i
        for i, ((x, y), (low, high)) in enumerate(zip(curve.points, band, strict=True))
        if drawable(x, log_x) and all(drawable(value, log_y) for value in (y, low, high))
    ]
    if not kept:
        raise CoupledQKError(f"series {curve.name!r} has no point that can be drawn: leave it out")
    band = [curve.band[i] for i in kept] if curve.band else ()
    return replace(curve, points=[curve.points[i] for i in kept], band=band)


def _description(curves: Sequence[Series], x_label: str) -> str:
    """The description of a chart for screen readers."""
    ends = [(curve.name, *curve.points[-1]) for curve in curves]
    return "; ".join(f"{name} ends at {y:.4g} ({x_label} {x:.6g})" for name, x, y in ends)


def _legend(names: Sequence[str], looks: Sequence[int], y: int) -> tuple[str, int]:
    """The legend, wrapped to the width of the chart, and the y coordinate below it."""
    keys, x = [], MARGIN
    for name, look in zip(names, looks, strict=True):
        name = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
        width = KEY_WIDTH + LETTER_WIDTH * len(name)
        if x > MARGIN and x + width > WIDTH:
            x, y = MARGIN, y + LINE_HEIGHT
        strokes = _strokes([(x, y - 4), (x + 15, y - 4), (x + 30, y - 4)], look, marked=slice(1, 2))
        keys.append(f'<g>{strokes}<text x="{x + 37}" y="{y}">{html.escape(name)}</text></g>')
        x += width
    return "\n".join(keys), y + ABOVE


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    """The axes with their ticks and labels. The y label is horizontal and placed above its axis."""
    rules, texts = [], []
    for tick, label in y.ticks():
        rules.append(f"M{x.start} {y.at(tick):.1f}H{x.end}")
        texts.append(f'<text class="soft end" dy=".35em" x="{x.start - 8}" y="{y.at(tick):.1f}">{label}</text>')
    end = 0.0
    for tick, label in x.ticks():
        at, half = x.at(tick), LETTER_WIDTH * len(label) / 2
        rules.append(f"M{at:.1f} {y.start}v5")
        if at - half >= end:  # on a log axis, long labels may be too close to one another
            texts.append(f'<text class="soft middle" x="{at:.1f}" y="{y.start + 22}">{label}</text>')
            end = at + half
    return "\n".join(
        [
            f'<path class="rules" d="{"".join(rules)}"/><path class="axis" d="M{x.start} {y.start}H{x.end}"/>',
            *texts,
            f'<text class="soft" x="{MARGIN}" y="{y.end - 12}">{html.escape(y_label)}</text>',
            f'<text class="soft middle" x="{(x.start + x.end) / 2}" y="{y.start + 46}">{html.escape(x_label)}</text>',
        ]
    )


def _curve(curve: Series, look: int, x: Axis, y: Axis) -> str:
    shift = BAR_SHIFT * look if curve.bars else 0
    pixels = [(x.at(value) + shift, y.at(height)) for value, height in curve.points]
    low_edge = [(px, y.at(low)) for (px, _), (low, _) in zip(pixels, curve.band, strict=False)]
    high_edge = [(px, y.at(high)) for (px, _), (_, high) in zip(pixels, curve.band, strict=False)]
    every = -(-len(pixels) // MOST_MARKERS)
    marked = slice(look * every // 3 % every, None, every)  # markers of overlapping curves alternate
    xs, ys = (" ".join(f"{value:.9g}" for value in values) for values in zip(*curve.points, strict=True))
    return (
        f'<g class="series" data-name="{html.escape(curve.name)}" data-x="{xs}" data-y="{ys}">'
        + (_band(low_edge, high_edge, look, curve.bars) if curve.band else "")
        + _strokes(pixels, look, marked)
        + "</g>"
    )


def _band(low_edge: Sequence[Point], high_edge: Sequence[Point], look: int, bars: bool) -> str:
    if not bars:
        return f'<path class="band" {_colour(look)} d="{_path([*low_edge, *high_edge[::-1]])}z"/>'
    edges = zip(low_edge, high_edge, strict=True)
    strokes = (f"M{x - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8" for (x, low), (_, high) in edges if low != high)
    return f'<path class="bars" {_colour(look)} d="{"".join(strokes)}"/>'


def _strokes(pixels: Sequence[Point], look: int, marked: slice) -> str:
    marker = MARKERS[look % len(MARKERS)]
    marks = "".join(f"M{x:.1f} {y:.1f}{marker}" for x, y in pixels[marked])
    return (
        f'<path class="line" {_colour(look)} stroke-dasharray="{DASHES[look % len(DASHES)]}" d="{_path(pixels)}"/>'
        f'<path class="marks" {_colour(look)} d="{marks}"/>'
    )


def _colour(look: int) -> str:
    return f'style="--colour:var(--colour-{look % len(COLOURS)})"'


def _path(pixels: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)
