"""coupledqk runs"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..report.listing import plugins_table, run_record, runs_in, runs_table
from .plugin import WithPlugin


@dataclass(frozen=True)
class Runs(WithPlugin):
    """List the runs below a folder: the model and task of each run, its progress, and its best validation result.

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
        found = runs_in(folders)
        plugins = {run: plugin for run in found if (plugin := run.missing_plugin) is not None}
        runs = [run for run in found if run not in plugins]
        if self.json:
            unread = [{"run": str(run.path), "status": run.status, "needs_plugin": plugins[run]} for run in plugins]
            print(json.dumps([*map(run_record, runs), *unread], indent=2))
        elif found:
            print("\n\n".join(filter(None, [runs_table(runs), plugins_table(plugins)])))
        else:
            print(f"no runs below {', '.join(map(str, folders))}; `coupledqk train` creates one")
