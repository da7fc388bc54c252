"""Summaries of plans, their progress and outcomes as text for a terminal."""

import shlex
from collections.abc import Sequence

from ..costs import count_parameters
from ..outcome import Outcome
from ..report.baselines import baselines_table, models_of_rows, objections
from ..report.ladder import ladder_table
from ..report.shifts import shifts_table
from ..report.tables import finding, results_table
from ..terminal import duration, table
from .cells import Plan, failure, status, with_needed
from .estimates import Speeds, paper_hours, tokens, work
from .experiment import Experiment
from .laboratory import notes
from .ladder import too_large
from .measuring import Measurement
from .runner import Queue


def listing(experiments: Sequence[Experiment]) -> str:
    """Name, source, scales and title of each experiment."""
    rows = [[e.name, e.source, "measures" if e.commands else ", ".join(e.scales), e.title] for e in experiments]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=True)), row[3]]) for row in rows
    )


def cost_summary(plan: Plan) -> str:
    """The runs of a plan, their sizes and their expected durations."""
    import torch

    cells = with_needed(plan.own_cells)
    speeds = Speeds.of(plan.out / "runs")
    known = all(speeds.hours(cell.config) for cell in cells)
    elsewhere = plan.scale_name == "paper" and not known and not torch.cuda.is_available()
    hours = paper_hours if elsewhere else speeds.measure
    rows, total, n_left = [], 0.0, 0
    for label in dict.fromkeys(cell.label for cell in cells):
        group = [cell for cell in cells if cell.label == label]
        left = [cell for cell in group if status(plan.run(cell)) != "finished"]
        config, took = group[0].config, hours(group[0].config)
        n_left, total = n_left + len(left), total + len(left) * took
        size = [f"{count_parameters(config.model):,}", f"{tokens(config) / 1e6:,.2f}M", f"{work(config):.1e}"]
        rows.append([label, f"{len(group)}", f"{len(left)}", *size, duration(3600 * took)])
    head = ["", "runs", "to do", "parameters", "tokens", "FLOPs", "time per run"]
    source = (
        "on one RTX 2080 Ti, by the paper's throughput"
        if elsewhere
        else f"on this machine, by {'finished runs' if known else 'a few training steps'}"
    )
    lines = [f"{plan.experiment.title} ({plan.experiment.source}), {plan.scale_name}", "", table(head, rows), ""]
    said = f"{n_left} of {len(cells)} runs to do, about {duration(3600 * total)} one after another {source}."
    skipped = {} if elsewhere else too_large(plan)
    return "\n".join([*lines, said, *(f"{label} is skipped: {why}" for label, why in skipped.items()), *notes(plan)])


def progress_summary(plan: Plan) -> str:
    """The number of runs of each row by status, and the reasons for failures."""
    kinds = ("finished", "running", "interrupted", "failed", "waiting")
    rows, errors = [], []
    for label in plan.labels:
        own = [cell for cell in plan.own_cells if cell.label == label]
        n_reused = sum(cell.label == label for cell in plan.cells) - len(own)
        found = [*(status(plan.run(cell)) for cell in own), *["finished"] * n_reused]
        rows.append([label, *(str(found.count(kind) or "") for kind in kinds)])
        errors += [
            f"{label} seed {cell.seed} failed: {why}" for cell in own if (why := failure(plan.run(cell)).get("error"))
        ]
    lines = [f"{plan.experiment.title}, {plan.scale_name}", "", table(["", *kinds], rows)]
    return "\n".join([*lines, *errors, *notes(plan)])


def measurement_summary(experiment: Experiment, found: Sequence[Measurement]) -> str:
    """The commands of an experiment that trains nothing, and the runs that they wait for."""
    lines = [f"{experiment.title} ({experiment.source})", ""]
    for each in found:
        lines.append(f"coupledqk {shlex.join(each.words)}")
        if each.unfinished:
            lines.append(f"  waits for {', '.join(each.unfinished)} of {experiment.of}, seed {each.seed}")
    return "\n".join(lines)


def published_summary(experiment: Experiment) -> str:
    """The paper's numbers for an experiment that trains nothing; empty if there are none."""
    rows = [[label, f"{number.mean:g}"] for label, number in experiment.published.items()]
    return f"{table(['in the paper', ''], rows)}\n" if rows else ""


def outcome_summary(outcome: Outcome) -> str:
    """The table of results, the n-gram models of the same text, and a sentence for every claim."""
    results, models = results_table(outcome), models_of_rows(outcome)
    lines = [f"{outcome.title} ({outcome.source}), {outcome.scale}", "", table(results.head, results.rows)]
    if beside := baselines_table(models):
        lines += ["", table(beside.head, beside.rows), *objections(models)]
    if outcome.ladders:
        ladder = ladder_table(outcome)
        lines += ["", table(ladder.head, ladder.rows)]
    if outcome.shifts:
        shifts = shifts_table([outcome])
        lines += ["", shifts.caption, "", table(shifts.head, shifts.rows)]
    if outcome.verdicts:
        lines.append("")
    lines += [f"{each.claim.text}: {finding(outcome, each).upper()}. {each.sentence}" for each in outcome.verdicts]
    return "\n".join(lines)


def failure_summary(queue: Queue) -> str:
    """The runs of a queue that did not finish, and why."""
    lines = [
        f"  {queue.cells[name].label} seed {queue.cells[name].seed}: {why}" for name, why in queue.troubles.items()
    ]
    left = len(lines) + (0 if queue.complete else len(queue.waiting))
    if queue.stopped:
        lines.append("Run the same command again to resume.")
    elif queue.failed:
        lines.append("Once the cause is gone, run the same command again.")
    if queue.diverged:
        lines.append("Runs that diverged are not trained again; to do so, delete their folders.")
    return "\n".join([f"{left} of {len(queue.cells)} runs are not finished:", *lines])
