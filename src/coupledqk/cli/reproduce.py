"""coupledqk reproduce"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import CoupledQKError
from .output import table

if TYPE_CHECKING:
    from ..lab.cells import Plan
    from ..lab.experiment import Experiment
    from ..lab.runner import Queue


@dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments, or all of them: tables and figures with statistics. It can be stopped at any moment.

    Finished runs are skipped, interrupted ones go on; experiments share the runs that they have in common.

    Try it:

        coupledqk reproduce --list
        coupledqk reproduce smoke
        coupledqk reproduce ablation --jobs 2
        coupledqk reproduce corpus --data-dir texts/ --seeds 0 1 2 3 4
        coupledqk reproduce ablation --scale paper --dry-run
        coupledqk reproduce all --status
    """

    names: tuple[str, ...]
    """Experiments by name, or all."""
    scale: Literal["mini", "paper"] = "mini"
    """mini (minutes a run on one core) or paper (its exact recipes, for GPUs)."""
    seeds: tuple[int, ...] = ()
    """Other seeds than the experiment's own."""
    data_dir: Path | None = None
    """Where local copies of the corpora lie."""
    jobs: int | None = None
    """Runs at a time; as many as there are cores for unless given."""
    out: Path = Path("lab")
    """The laboratory's folder: OUT/runs/ and an outcome OUT/NAME-SCALE.json for each experiment."""
    list: bool = False
    """List the experiments and stop."""
    dry_run: bool = False
    """Say what would be trained and what it costs, and stop."""
    status: bool = False
    """Say how far it is, and stop."""

    def run(self) -> None:
        from ..lab.cells import make_plan
        from ..lab.experiment import load, names

        if self.list:
            print(listing([load(name) for name in names()]))
            return
        if not self.names:
            raise CoupledQKError("which experiment? Name one or more, or all; `coupledqk reproduce --list` lists them")
        everything = "all" in self.names
        chosen = [load(name) for name in (names() if everything else self.names)]
        if everything:
            chosen = [each for each in chosen if each.name != "smoke"]
        plans = [
            make_plan(each, self.scale, self.out, self.seeds, self.data_dir) for each in chosen if not each.commands
        ]
        if self.dry_run or self.status:
            for plan in plans:
                print(costs(plan) if self.dry_run else progress(plan), end="\n\n")
            return
        if plans:
            self.train(plans)
        for each in chosen:
            if each.commands:
                self.measure(each)

    def train(self, plans: "Sequence[Plan]") -> None:
        from ..lab.engine import LocalPool
        from ..lab.overview import GridProgress
        from ..lab.runner import Queue, check_jobs, require_statistics, run_queue
        from ..training.progress import stop_on_signals

        jobs = default_jobs(plans) if self.jobs is None else self.jobs
        check_jobs(jobs)
        require_statistics(plans)
        for plan in plans:
            for line in notes(plan):
                print(line, file=sys.stderr)
        queue = Queue.of(plans)
        with stop_on_signals() as stop:
            run_queue(queue, LocalPool(jobs), GridProgress(), stop)
        for plan in plans:
            print(results(plan), end="\n\n")
        if queue.troubles:
            print(troubles(queue), file=sys.stderr)
            sys.exit(130 if stop() else 1)

    def measure(self, experiment: "Experiment") -> None:
        """What is measured on trained runs: the command that does it, with their folders."""
        from . import run

        folders = {"out": str(self.out / f"{experiment.name}-{self.scale}"), **self.finished_runs(experiment)}
        try:
            words = [word.format(**folders) for word in experiment.commands[self.scale].split()]
        except KeyError as missing:
            raise CoupledQKError(
                f"{experiment.name} looks into the run {missing} of {experiment.of}, which is not finished: "
                f"`coupledqk reproduce {experiment.of} --scale {self.scale}` first"
            ) from None
        print(f"{experiment.title} ({experiment.source}): coupledqk {' '.join(words)}\n", flush=True)
        run(words)
        if experiment.published:
            rows = [[label, f"{number.mean:g}"] for label, number in experiment.published.items()]
            print(f"\n{table(['in the paper', ''], rows)}\n")

    def finished_runs(self, experiment: "Experiment") -> dict[str, str]:
        """The folder of each row's first finished run, in the experiment that is measured."""
        from ..lab.cells import make_plan
        from ..lab.experiment import load

        if experiment.of is None:
            return {}
        plan = make_plan(load(experiment.of), self.scale, self.out)
        return {cell.label: str(plan.run(cell).path) for cell in reversed(plan.cells) if plan.run(cell).result}


def default_jobs(plans: "Sequence[Plan]") -> int:
    """One run for as many cores as it has threads; a run that leaves its threads to PyTorch has the machine to itself."""
    threads = {cell.config.runtime.threads for plan in plans for cell in plan.cells}
    return 1 if None in threads else max(1, (os.cpu_count() or 1) // max(count or 1 for count in threads))


def notes(plan: "Plan") -> list[str]:
    """What should be known before a plan is carried out."""
    from ..lab.runner import check_seeds, stale

    lines = []
    if old := stale(plan):
        lines.append(
            f"{plan.experiment.name}: its grid has changed since {plan.outcome} was written; these runs are stale, no longer "
            f"counted and left where they are: {', '.join(old)}"
        )
    if few := check_seeds(plan):
        lines.append(f"{plan.experiment.name}: {few}")
    return lines


def listing(experiments: "Sequence[Experiment]") -> str:
    rows = []
    for each in experiments:
        rows.append([each.name, each.source, "measures" if each.commands else ", ".join(each.scales), each.title])
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=True)), row[3]]) for row in rows
    )


def results(plan: "Plan") -> str:
    """The table and the verdicts."""
    from ..lab.outcomes import outcome

    found = outcome(plan)
    rows = []
    for row in found.rows:
        ours = "" if row.mean is None else f"{row.mean:.4g}" + ("" if row.std is None else f" ± {row.std:.2g}")
        paper = "" if row.paper is None else f"{row.paper.mean:g}" + (f" ± {row.paper.std:g}" if row.paper.std else "")
        rows.append([row.label, ours, str(row.n), paper])
    lines = [
        f"{found.title} ({found.source}), {found.scale}",
        "",
        table(["", found.metric.name, "n", "paper"], rows),
        "",
    ]
    lines += [f"{verdict.claim.text}: {verdict.outcome.upper()}. {verdict.sentence}" for verdict in found.verdicts]
    return "\n".join([*lines, str(plan.outcome)])


def troubles(queue: "Queue") -> str:
    lines = [
        f"  {queue.cells[name].label} seed {queue.cells[name].seed}: {why}" for name, why in queue.troubles.items()
    ]
    left = len(lines) + len(queue.waiting)
    return "\n".join(
        [
            f"{left} of {len(queue.cells)} runs are not finished:",
            *lines,
            "The same command goes on where this one ended.",
        ]
    )


def costs(plan: "Plan") -> str:
    """What a plan will train, and what that costs."""
    from ..costs import count_parameters
    from ..lab.cells import status, with_needed
    from ..lab.estimates import Speeds, paper_hours, tokens, work

    cells = with_needed(plan.cells)
    speeds = Speeds.of(plan.out / "runs")
    measured = all(speeds.hours(cell.config) for cell in cells)
    hours = speeds.hours if measured or plan.scale_name != "paper" else paper_hours
    rows, total, n_left = [], 0.0, 0
    for label in dict.fromkeys(cell.label for cell in cells):
        group = [cell for cell in cells if cell.label == label]
        left = [cell for cell in group if status(plan.run(cell)) != "finished"]
        config, took = group[0].config, hours(group[0].config)
        n_left, total = n_left + len(left), total + len(left) * (took or 0)
        size = [f"{count_parameters(config.model):,}", f"{tokens(config) / 1e6:,.2f}M", f"{work(config):.1e}"]
        rows.append([label, f"{len(group)}", f"{len(left)}", *size, f"{took:.2g}" if took else "?"])
    head = ["", "runs", "to do", "parameters", "tokens", "FLOPs", "hours"]
    lines = [f"{plan.experiment.title} ({plan.experiment.source}), {plan.scale_name}", "", table(head, rows), ""]
    if measured:
        said = f"{total:.2g} hours one after another, by the speed of finished runs"
    elif plan.scale_name == "paper":
        said = f"{total:.2g} hours one after another on an RTX 2080 Ti, by the paper's throughput"
    else:
        said = "nothing alike has been finished here yet to judge the hours by"
    return "\n".join([*lines, f"{n_left} of {len(cells)} runs to do: {said}.", *notes(plan)])


def progress(plan: "Plan") -> str:
    """How many cells of each row are finished, and why others are not."""
    from ..lab.cells import failure, status

    kinds = ("finished", "running", "interrupted", "failed", "waiting")
    rows, errors = [], []
    for label in plan.labels:
        group = [cell for cell in plan.cells if cell.label == label]
        found = [status(plan.run(cell)) for cell in group]
        rows.append([label, *(str(found.count(kind) or "") for kind in kinds)])
        errors += [
            f"{label} seed {cell.seed} failed: {why}" for cell in group if (why := failure(plan.run(cell)).get("error"))
        ]
    lines = [f"{plan.experiment.title}, {plan.scale_name}", "", table(["", *kinds], rows)]
    return "\n".join([*lines, *errors, *notes(plan)])
