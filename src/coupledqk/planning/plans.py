"""Plans as text: the requirements of a run or an experiment, and the command that starts it."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ..config import RunConfig
from ..files import write_atomic
from ..lab.cells import make_plan
from ..lab.experiment import load
from .estimate import Machine, estimate, experiment_rows, require_fit
from .figure import growth_figure
from .summary import experiment_summary, run_summary

PLANNED = ("micro_batch", "gradient_checkpointing", "parallel", "device")
"""Settings that a plan determines."""


def plan_run(
    config: RunConfig, name: str, arguments: Sequence[str], machine: Machine, figure: Path | None = None
) -> str:
    """The plan of the run that `coupledqk train` starts with these `arguments`. Writes a figure if its path is given."""
    found = estimate(config, machine)
    best = require_fit(found, name)
    chosen = ["--micro-batch", str(best.micro_batch), "--gradient-checkpointing", str(best.checkpointing).lower()]
    program = ["coupledqk"]
    if machine.devices > 1:
        program = ["torchrun", "--nproc-per-node", str(machine.devices), "-m", "coupledqk"]
        chosen += ["--parallel", best.strategy]
    command = shlex.join([*program, "train", *arguments, *chosen, "--device", "cuda"])
    summary = run_summary(found, name, command)
    if figure is None:
        return summary
    write_atomic(figure, growth_figure(config, machine, best.micro_batch))
    return f"{summary}\n\n{figure}"


def plan_experiment(name: str, scale: str, machine: Machine) -> str:
    """The plan of all runs of an experiment."""
    experiment = load(name)
    rows = list(experiment_rows(make_plan(experiment, scale), machine))
    several = f" --engine ray --gpus-per-run {machine.devices}" if machine.devices > 1 else ""
    command = f"coupledqk reproduce {shlex.quote(name)} --scale {scale}{several}"
    return experiment_summary(f"{experiment.title}, {scale}", rows, machine, command)
