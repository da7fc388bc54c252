"""coupledqk runs"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import identity
from ..errors import CoupledQKError
from ..run_folder import RunFolder, find_runs, task_name, variant_name
from .output import table


@dataclass(frozen=True)
class Runs:
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
        rows = [describe(run) for folder in folders for run in find_runs(folder)]
        if self.json:
            print(json.dumps(rows, indent=2))
            return
        if not rows:
            print(f"no runs below {', '.join(map(str, folders))}; `coupledqk train` makes one")
            return
        head = ["run", "attention", "seed", "status", "step", "best perplexity", "bits per byte", "accuracy"]
        print(table(head, [[cell(row[key]) for key in KEYS] for row in rows]))


KEYS = ("run", "attention", "seed", "status", "step", "perplexity", "bits_per_byte", "accuracy")


def describe(run: RunFolder) -> dict[str, Any]:
    config, valid, train = run.config, run.metrics("valid"), run.metrics("train")
    best = min(valid, key=lambda record: record["loss"], default={})
    step = max((record["step"] for record in (*valid[-1:], *train[-1:])), default=0)
    return {
        "run": str(run.path),
        "attention": variant_name(config),
        "seed": config.seed,
        "corpus": task_name(config),
        "status": run.status,
        "step": f"{step}/{config.train.steps}",
        "perplexity": best.get("perplexity"),
        "bits_per_byte": best.get("bits_per_byte"),
        "accuracy": best.get("accuracy"),
        "identity": identity(config),
    }


def cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
