"""coupledqk runs"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..report.listing import run_record, runs_in, runs_table
from .plugin import WithPlugin


@dataclass(frozen=True)
class Runs(WithPlugin):
    """List the runs below a folder: the model and task of each run, its progress, and its best validation.

    Try it:

        coupledqk runs
        coupledqk runs demo --json
    """

    folders: tuple[Path, ...]
    """Folders to search; the default is the folder runs."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        folders = self.folders or (Path("runs"),)
        runs = runs_in(folders)
        if self.json:
            print(json.dumps([run_record(run) for run in runs], indent=2))
        elif runs:
            print(runs_table(runs))
        else:
            print(f"no runs below {', '.join(map(str, folders))}; `coupledqk train` creates one")
