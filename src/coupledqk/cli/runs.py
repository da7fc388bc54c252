"""coupledqk runs"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import identity
from ..errors import CoupledQKError
from ..run_folder import RunFolder, find_runs, task_name, variant_name
from .output import table
from .plugin import WithPlugin


@dataclass(frozen=True)
class Runs(WithPlugin):
    """List the runs below a folder: what each trains, how far it is, and its best validation.

    Try it:

        coupledqk runs
        coupledqk runs demo --json
    """

    folders: tuple[Path, ...]
    """Where to look; the folder runs unless given."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        folders = self.folders or (Path("runs"),)
        for folder in folders:
            if not folder.is_dir():
                raise CoupledQKError(
                    f"{folder}: no such folder; name the one that holds runs, as in `coupledqk runs demo`"
                )
        runs = [run for folder in folders for run in find_runs(folder)]
        rows = [record(run) for run in runs]
        if self.json:
            print(json.dumps(rows, indent=2))
            return
        if not rows:
            print(f"no runs below {', '.join(map(str, folders))}; `coupledqk train` makes one")
            return
        keys = ("run", "attention", "seed", "status", "step")
        cells = [[*(str(row[key]) for key in keys), best(run, row)] for run, row in zip(runs, rows, strict=True)]
        print(table([*keys, "best validation"], cells))


def record(run: RunFolder) -> dict[str, Any]:
    config, valid, train = run.config, run.metrics("valid"), run.metrics("train")
    lowest = min(valid, key=lambda each: each["loss"], default={})
    measure = config.task.measure
    step = max((each["step"] for each in (*valid[-1:], *train[-1:])), default=0)
    return {
        "run": str(run.path),
        "attention": variant_name(config),
        "seed": config.seed,
        "corpus": task_name(config),
        "status": run.status,
        "step": f"{step}/{config.train.steps}",
        **{each.key: lowest.get(each.key) for each in (measure, *measure.companions)},
        "identity": identity(config),
    }


def best(run: RunFolder, row: dict[str, Any]) -> str:
    """The measure of the run's task at its best validation, with what is shown beside it."""
    measure = run.config.task.measure
    shown = [
        f"{each.name} {each.show(row[each.key])}"
        for each in (measure, *measure.companions)
        if row[each.key] is not None
    ]
    return ", ".join(shown)
