"""The explorer's page: one HTML file that contains the bundle, with the style and the content security policy of reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import CoupledQKError
from ..files import write_atomic
from ..report import page as report
from ..server import as_json
from .bundle import Reader, make_bundle, make_effects

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("page.css", "explore.css")
SCRIPTS = (
    "decode.js", "colours.js", "heatmap.js", "motion.js", "readout.js", "views.js", "coupling.js", "tour.js", "steering.js",
    "start.js",
)  # fmt: skip


def render(bundle: dict[str, Any], effects: list[Any] | None = None, live_text: str | None = None) -> str:
    """Renders a page that shows a bundle, and the effects of interventions if they are given.

    With `live_text` the page has a text field with this text, and requests effects and bundles of other texts from its server.
    """
    names = [run["name"] for run in bundle["runs"]]
    return report.render(
        "explore.html",
        TEMPLATES,
        STYLES,
        SCRIPTS,
        title=f"Attention of {' and '.join(names)}",
        live_text=live_text,
        bundle=as_json(bundle),
        effects=as_json(effects),
    )


def write_page(readers: Sequence[Reader], text: str, out: Path, cut: bool = False) -> float:
    """Writes the page of one or two runs on a text, with the effects of interventions. Returns its size in MB."""
    if out.is_dir():
        raise CoupledQKError(f"{out} is a folder: name a file, such as --out {out / 'explore.html'}")
    page = render(make_bundle(readers, text, cut), make_effects(readers, text, cut))
    write_atomic(out, page)
    return len(page) / 1e6
