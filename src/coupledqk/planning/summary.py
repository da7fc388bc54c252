"""Estimates as text for a terminal."""

from collections.abc import Sequence
from dataclasses import fields

from ..lab.estimates import tokens
from ..terminal import duration, table
from .estimate import RESERVE, Estimate, Machine, Option, Row, paper_utilisation
from .gpus import GIB
from .memory import Memory

PARTS = [field.name for field in fields(Memory)]


def run_summary(found: Estimate, name: str, command: str) -> str:
    """The size of a run, its memory by part and its time with every option, and the command for the best option."""
    machine, train = found.machine, found.config.train
    rate = machine.gpu.peak(train.precision) * machine.utilisation
    work = found.flops
    head = ["", *(_title(option) for option in found.options)]
    rows = [[part, *(_gib(getattr(option.memory.parts, part)) for option in found.options)] for part in PARTS]
    rows += [
        ["peak", *(f"{option.memory.total / GIB:.2f}" for option in found.options)],
        ["largest micro-batch", *(str(option.micro_batch) if option.fits else "none fits" for option in found.options)],
        ["time", *(duration(3600 * option.hours) if option.fits else "" for option in found.options)],
        ["GPU-hours", *(_gpu_hours(option.hours, machine) if option.fits else "" for option in found.options)],
    ]
    return "\n".join(
        [
            f"{name} on {_machine(machine)}",
            "",
            f"parameters        {found.parameters:,}",
            f"FLOPs per token   {work.forward:.3g} forward, {work.training:.3g} in training "
            f"({work.dynamics / work.forward:.1%} of them in the dynamics)",
            f"training          {train.steps:,} steps of {train.batch_size} × {train.seq_len} tokens, "
            f"{tokens(found.config) / 1e6:,.0f}M in all, in {train.precision}",
            "",
            "Memory of each GPU in GiB at the largest micro-batch that fits, or at 1 if none fits. The parts reach their "
            "maxima at different times, so their sum may exceed the peak.",
            "",
            table(head, rows),
            "",
            assumptions(machine),
            f"Time is for {rate / 1e12:.3g} TFLOP/s per GPU, without communication, evaluation and data loading.",
            "",
            f"    {command}",
        ]
    )


def experiment_summary(title: str, rows: Sequence[Row], machine: Machine, command: str) -> str:
    """A line for each row of the experiment, with the best option and the cost of its runs."""
    cells, total = [], 0.0
    for row in rows:
        found, best = row.estimate, row.estimate.best
        size = [f"{row.runs}", f"{found.parameters:,}", f"{found.flops.training:.2e}"]
        if best is None:
            least = min(option.memory.total for option in found.options)
            cells.append([row.label, *size, "does not fit", f"{least / GIB:.1f}", "", "", ""])
            continue
        total += row.runs * best.hours
        cost = [duration(3600 * best.hours), _gpu_hours(row.runs * best.hours, machine)]
        cells.append([row.label, *size, _title(best), f"{best.memory.total / GIB:.1f}", str(best.micro_batch), *cost])
    head = ["", "runs", "parameters", "FLOPs per token", "strategy", "GiB", "micro-batch", "time per run", "GPU-hours"]
    fitting = sum(row.runs for row in rows if row.estimate.best is not None)
    n_runs = sum(row.runs for row in rows)
    return "\n".join(
        [
            f"{title} on {_machine(machine)}",
            "",
            table(head, cells),
            "",
            f"{fitting} of {n_runs} runs fit. They take {_gpu_hours(total, machine)} GPU-hours, or "
            f"{duration(3600 * total)} one after another.",
            assumptions(machine),
            "",
            f"    {command}",
        ]
    )


def assumptions(machine: Machine) -> str:
    """The assumptions of an estimate, in one line."""
    share = f"{machine.utilisation:.0%} of the peak speed"
    if machine.utilisation == paper_utilisation():
        share += " (as for the paper's 60M model on an RTX 2080 Ti)"
    return f"Assumed: {share}, {1 - RESERVE:.0%} of the memory usable. These estimates have not been checked on a GPU."


def _machine(machine: Machine) -> str:
    return f"{machine.devices} × {machine.gpu.name} ({machine.gpu.memory / GIB:.3g} GiB)"


def _title(option: Option) -> str:
    name = "one GPU" if option.strategy == "single" else option.strategy
    return f"{name}, checkpointing" if option.checkpointing else name


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}" if size else "–"


def _gpu_hours(hours: float, machine: Machine) -> str:
    return f"{hours * machine.devices:,.1f}"
