"""The documentation site: `make docs`. It is built offline, and its pages request nothing from outside."""

import re

from coupledqk import __version__

project = "coupledqk"
author = "The coupledqk developers"
copyright = author  # noqa: A001  (Sphinx reads it by this name)
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"coupledqk {release}"
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 3
# Links to files outside of the site, such as results/lab, serve readers of the repository; tests check that they exist.
suppress_warnings = ["myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
default_role = "code"


def plain_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text with `code`, lists and indented examples; makes reStructuredText of them."""
    found: list[str] = []
    for line in lines:
        literal = line.startswith("    ")
        if literal and not (found and (not found[-1] or found[-1].startswith("    "))):
            found.append("")
        if literal and not any(earlier.startswith(("    ", "::")) for earlier in _paragraph(found)):
            found += ["::", ""]
        found.append(line if literal else _escaped(line))
    lines[:] = found


def _paragraph(lines: list[str]) -> list[str]:
    """The lines since the last one that is neither empty nor indented, without it."""
    for place in range(len(lines) - 1, -1, -1):
        if lines[place] and not lines[place].startswith("    ") and lines[place] != "::":
            return lines[place + 1 :]
    return lines


def _escaped(line: str) -> str:
    """Without reStructuredText's markup outside of `code`."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*|_])", r"\\\1", part) for part in parts)


def setup(app) -> None:
    app.connect("autodoc-process-docstring", plain_docstring)
