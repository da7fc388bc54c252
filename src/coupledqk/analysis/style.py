"""One style for every figure: legible in print at the width of a page, in grey, and for colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CoupledQKError
from ..files import atomic_path
from ..palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_WIDTH, PANEL_HEIGHT = 6.75, 2.7  # inches

# Markers, dashes and hatches distinguish runs in print without colour.
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1)), "-", (0, (5, 1.5)), (0, (1, 1))]
HATCHES = ["", "////", "....", "\\\\\\\\", "xxxx", "----", "||||", "++++"]

# Colour maps with even steps of brightness; the second is for signed values and is white at 0.
SEQUENTIAL, DIVERGING = "viridis", "PuOr_r"

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "hatch.linewidth": 0.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType, so that text remains text
    "svg.hashsalt": "coupledqk",  # the same figure gives the same bytes
}


@contextmanager
def styled() -> Iterator[None]:
    """Applies the style within the context, and restores matplotlib's settings after it."""
    try:
        import matplotlib
    except ImportError:
        raise CoupledQKError("figures need matplotlib: pip install 'coupledqk[plot]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(width: float = PAGE_WIDTH, height: float = PANEL_HEIGHT) -> Figure:
    """A figure made without pyplot, so that no window opens and no global state changes. Sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def look(place: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line at that position in the legend."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Writes path.svg, path.pdf and path.png."""
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    written = [Path(f"{path}.{kind}") for kind in undated]
    with styled():
        for file, (kind, metadata) in zip(written, undated.items(), strict=True):
            with atomic_path(file) as temporary:
                figure.savefig(temporary, format=kind, metadata=metadata)
    return written
