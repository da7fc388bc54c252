"""Renders templates to self-contained HTML files, with inline styles and scripts and without network requests."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..formats import NOTHING, number
from .chart import printable

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"


def render(
    template: str,
    folder: Path = TEMPLATES,
    styles: Sequence[str] = ("page.css",),
    scripts: Sequence[str] = ("hover.js",),
    **values: Any,
) -> str:
    """Renders a template that extends page.html. All values are escaped, unless the template marks them as safe.

    Files are loaded from `folder` and, if it does not contain them, from the folder of this module.
    """
    environment = _environment(folder)
    style, script = ("".join(_source(environment, name) for name in names) for names in (styles, scripts))
    # The content security policy allows only this script and no requests (a template may allow more), whatever text is shown.
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(style=style, script=script, script_hash=script_hash, **values)
    return printable(page)


def render_part(template: str, **values: Any) -> str:
    """Renders a template for a part of a page."""
    return printable(_environment(TEMPLATES).get_template(template).render(**values))


def _environment(folder: Path) -> "jinja2.Environment":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "plain": plain}
    return environment


def _source(environment: "jinja2.Environment", name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def plain(value: Any) -> str:
    """A setting as written in a configuration file, with thousands separators in large numbers."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
