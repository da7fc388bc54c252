"""Tables of runs for the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..baselines import objection, read_baselines
from ..config import identity
from ..errors import CoupledQKError
from ..files import in_shell
from ..run_folder import RunFolder, find_runs, task_name, variant_name
from ..terminal import table, wrapped


def runs_in(folders: Sequence[Path]) -> list[RunFolder]:
    """The runs in some folders and their subfolders, each once."""
    for folder in folders:
        if not folder.is_dir():
            raise CoupledQKError(
                f"{folder}: no such folder; name a folder that contains runs, as in `coupledqk runs demo`"
            )
    return list({run.path.resolve(): run for folder in folders for run in find_runs(folder)}.values())


def run_record(run: RunFolder) -> dict[str, Any]:
    """The model and task of a run, its progress, and the measures of its best validation, as plain values."""
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


def runs_table(runs: Sequence[RunFolder]) -> str:
    """One row per run, finished or not, of any task; empty if there are none."""
    if not runs:
        return ""
    keys = ("run", "attention", "seed", "status", "step")
    rows = []
    for run in runs:
        record, measure = run_record(run), run.config.task.measure
        measured = [each for each in (measure, *measure.companions) if record[each.key] is not None]
        best = ", ".join(f"{each.name} {each.show(record[each.key])}" for each in measured)
        rows.append([*(str(record[key]) for key in keys), best])
    return table([*keys, "best validation"], rows)


def plugins_table(plugins: Mapping[RunFolder, str]) -> str:
    """One row per run whose configuration cannot be read without its plugin file; empty if there are none."""
    if not plugins:
        return ""
    rows = [
        [str(run.path), run.status, f"--plugin {in_shell(file)}, unchanged since the run began"]
        for run, file in plugins.items()
    ]
    return table(["run", "status", "needs"], rows)


def results_table(runs: Sequence[RunFolder]) -> str:
    """A table of finished runs of one task with best and final measure, parameters and speed, followed by the definition of the
    measure and the n-gram models of the first run's text."""
    measure = runs[0].config.task.measure
    rows = []
    for run in runs:
        best, final, speed = run.result["best"], run.result["final"], run.result["tokens_per_second"]
        rows.append(
            [
                run.info["variant"],
                str(run.config.seed),
                measure.show(best[measure.key]),
                measure.show(final[measure.key]),
                *(companion.show(best[companion.key]) for companion in measure.companions),
                f"{run.info['parameters']:,}",
                f"{speed:,.0f}" if speed else "",
            ]
        )
    companions = [companion.name for companion in measure.companions]
    head = ["attention", "seed", f"{measure.name}: best", "final", *companions, "parameters", "tokens/s"]
    notes = [f"{measure.name.capitalize()}: {runs[0].result['definition']}."]
    if baselines := read_baselines(runs[0].result):
        named = ", ".join(f"{baseline.name} {baseline.bits_per_byte:.4f}" for baseline in baselines)
        notes.append(f"Bits per byte of n-gram models of the same text: {named}.")
    for run in runs:
        if why := objection(run.result["best"].get("bits_per_byte", 0.0), read_baselines(run.result)):
            notes.append(f"{run.info['variant']}: {why}.")
    return "\n\n".join([table(head, rows), *map(wrapped, notes)])
