"""The explorer's page: one HTML file with the bundle inside, in the look of the reports and under their policy."""

import json
from pathlib import Path
from typing import Any

from ..report import page as report

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("page.css", "explore.css")
SCRIPTS = ("decode.js", "colours.js", "heatmap.js", "paths.js", "readout.js", "views.js", "steering.js", "start.js")


def render(bundle: dict[str, Any], live_text: str | None = None) -> str:
    """With `live_text` the page has a form, filled with it, that asks the server the page came from for other bundles."""
    names = [run["name"] for run in bundle["runs"]]
    return report.render(
        "explore.html",
        TEMPLATES,
        STYLES,
        SCRIPTS,
        title=f"Attention of {' and '.join(names)}",
        live_text=live_text,
        bundle=as_json(bundle),
    )


def as_json(bundle: dict[str, Any]) -> str:
    """ASCII without <, so that no token can end the element it stands in."""
    return json.dumps(bundle, separators=(",", ":")).replace("<", "\\u003c")
