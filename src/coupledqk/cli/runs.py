"""coupledqk runs"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..files import in_shell
from ..report.listing import run_record, runs_in, runs_table
from ..run_folder import RunFolder
from ..terminal import table
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
        found = runs_in(folders)
        plugins = {run: plugin for run in found if (plugin := run.missing_plugin) is not None}
        runs = [run for run in found if run not in plugins]
        if self.json:
            unread = [{"run": str(run.path), "status": run.status, "needs_plugin": plugins[run]} for run in plugins]
            print(json.dumps([*map(run_record, runs), *unread], indent=2))
        elif found:
            tables = [runs_table(runs)] * bool(runs) + [_needs_table(plugins)] * bool(plugins)
            print("\n\n".join(tables))
        else:
            print(f"no runs below {', '.join(map(str, folders))}; `coupledqk train` creates one")


def _needs_table(plugins: dict[RunFolder, str]) -> str:
    """One row per run whose configuration cannot be read without its plugin."""
    needs = {run: f"--plugin {in_shell(plugin)}, unchanged since the run began" for run, plugin in plugins.items()}
    return table(["run", "status", "needs"], [[str(run.path), run.status, needs[run]] for run in plugins])
