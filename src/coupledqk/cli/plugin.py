"""--plugin FILE.py, for every command that builds or loads models."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class WithPlugin:
    """A command that can use dynamics, scorings and variants of the user's own."""

    plugin: Path | None = None
    """A Python file of your own that registers dynamics, scorings or variants (docs/plugins.md). It is executed."""
