"""The flag --plugin FILE.py, for every command that builds or loads models."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class WithPlugin:
    """A command that can use dynamics, scorings and variants from a user's plugin."""

    plugin: Path | None = None
    """A Python file that registers your own dynamics, scorings or variants (docs/plugins.md). The file is executed."""
