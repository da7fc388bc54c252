"""Experiments that train nothing: command lines that measure the runs of another experiment. Torch-free."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CoupledQKError
from ..files import in_shell
from .cells import fill, make_plan
from .experiment import Experiment, load


@dataclass(frozen=True)
class Measurement:
    """A command line that measures the runs of one seed."""

    words: tuple[str, ...]
    """Arguments of `coupledqk`, including the run folders."""
    seed: int | None
    """Seed of the measured runs; None for a command that needs no run."""
    unfinished: tuple[str, ...]
    """Labels of rows whose run with this seed is not finished."""


def measurements(experiment: Experiment, scale: str, out: Path, seeds: Sequence[int] = ()) -> list[Measurement]:
    """The command for each of `seeds`. The default is the first seed whose runs are all finished, or the first seed if
    there is none."""
    if scale not in experiment.commands:
        raise CoupledQKError(f"{experiment.name} has no scale {scale!r}: choose from {', '.join(experiment.commands)}")
    command, folder = experiment.commands[scale], f"{experiment.name}-{scale}"
    where = f"{experiment.file or experiment.name}, {scale}: command"
    if experiment.of is None:
        return [Measurement(_words(command, {"out": str(out / folder)}, where), None, ())]
    plan = make_plan(load(experiment.of), scale, out, seeds)
    _words(command, {"out": "", **dict.fromkeys(plan.labels, "")}, where)
    labels = {name for _, name, _, _ in string.Formatter().parse(command) if name} - {"out"}
    found = []
    for seed in dict.fromkeys(cell.seed for cell in plan.cells):
        runs = {cell.label: plan.run(cell) for cell in plan.cells if cell.seed == seed and cell.label in labels}
        if runs.keys() != labels:
            continue
        folders = {label: str(run.path) for label, run in runs.items()}
        own = folder if not seeds else f"{folder}-s{seed}"
        words = _words(command, {"out": str(out / own), **folders}, where)
        found.append(Measurement(words, seed, tuple(label for label, run in runs.items() if not run.result)))
    if not found:
        raise CoupledQKError(f"{where}: no seed of {experiment.of} has a run of each of {', '.join(sorted(labels))}")
    if seeds:
        return found
    return [next((each for each in found if not each.unfinished), found[0])]


def _words(command: str, names: Mapping[str, str], where: str) -> tuple[str, ...]:
    return tuple(fill(word, names, where) for word in command.split())


def require_finished(experiment: Experiment, scale: str, out: Path, found: Sequence[Measurement]) -> None:
    """Raises if a run in the folder `out` that would be measured is not finished."""
    for each in found:
        if each.unfinished:
            raise CoupledQKError(
                f"{experiment.name} needs the runs {', '.join(each.unfinished)} of {experiment.of}, seed {each.seed}, which "
                f"are not finished: run `coupledqk reproduce {experiment.of} --scale {scale} --out {in_shell(out)}` first"
            )
