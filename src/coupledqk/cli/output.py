"""Output and exit codes that commands have in common."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..signals import advise, stop_on_signals
from ..terminal import wrapped

if TYPE_CHECKING:
    from ..lab.cells import Plan
    from ..lab.experiment import Experiment
    from ..lab.machines import Machines
    from ..lab.runner import Queue
    from ..outcome import Outcome


def command_line() -> str:
    """The command that calls coupledqk again from the same folder: its name if it is on the PATH, its path otherwise."""
    if Path(sys.argv[0]).name == "__main__.py":
        return f"{sys.executable} -m coupledqk"
    found = shutil.which("coupledqk")
    return "coupledqk" if found and Path(found).samefile(sys.argv[0]) else sys.argv[0]


def train_plans(plans: "Sequence[Plan]", jobs: int | None, machines: "Machines | None" = None) -> "Queue":
    """Trains the unfinished runs of some plans, with progress on the terminal. Ctrl-C stops the training."""
    from ..lab.laboratory import run_plans
    from ..lab.machines import LOCAL

    advise("stopped; the same command resumes")
    with stop_on_signals() as stop:
        return run_plans(plans, jobs, stop=stop, machines=machines or LOCAL)


def train_and_print(plans: "Sequence[Plan]", jobs: int | None, machines: "Machines") -> None:
    """Trains the runs of some plans and prints the outcome of each plan."""
    from ..lab.summary import outcome_summary
    from ..outcome_file import read

    queue = train_plans(plans, jobs, machines)
    for plan in plans:
        print(f"{wrapped(outcome_summary(read(plan.outcome)))}\n{plan.outcome}\n")
    exit_unless_finished(queue)


def report_experiment(
    experiment: "Experiment", out: Path, jobs: int | None, machines: "Machines", as_json: bool
) -> "Outcome":
    """Trains an experiment of one scale, writes its report and prints its outcome."""
    from ..lab.cells import make_plan
    from ..lab.summary import outcome_summary
    from ..outcome_file import read, to_json
    from ..report.lab_page import write_report

    plan = make_plan(experiment, next(iter(experiment.scales)), out)
    queue = train_plans([plan], jobs, machines)
    outcome, page = read(plan.outcome), plan.outcome.with_suffix(".html")
    write_report([outcome], page)
    print(to_json(outcome) if as_json else f"{outcome_summary(outcome)}\n\n{page}")
    exit_unless_finished(queue)
    return outcome


def exit_unless_finished(queue: "Queue") -> None:
    """Prints which runs did not finish. Exits with code 130 after Ctrl-C, and with 1 if a run failed.

    A run that diverged is a result, not a failure.
    """
    from ..lab.summary import failure_summary

    if queue.troubles or queue.stopped:
        print(failure_summary(queue), file=sys.stderr)
    if queue.stopped:
        sys.exit(130)
    if queue.failed:
        sys.exit(1)
