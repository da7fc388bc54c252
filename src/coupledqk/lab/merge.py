"""Merges outcomes whose runs were trained at different times or on different machines. Torch-free.

The outcome files contain everything required; the run folders are not needed. Outcomes of other experiments contribute the rows
that they have in common with the first outcome.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..baselines import PositionLoss
from ..errors import CoupledQKError
from ..measure import MEASURES, TOKENS_TO_REACH, Measure
from ..outcome import CellRecord, Ladder, Outcome, Row
from ..outcome_file import read, write
from .cells import REACHED
from .outcomes import joined_origin, moments, tokens_to_reach, with_changes
from .rungs import fit_ladder
from .verdicts import judge_all


def merge_files(paths: Sequence[Path], out: Path) -> None:
    """Merges outcome files and writes the result to `out`. It overwrites an existing file only if it is one of the inputs."""
    if len(paths) < 2:
        raise CoupledQKError("merging requires at least two outcome files")
    if out.suffix != ".json":
        raise CoupledQKError(f"--merge {out}: expected a file name that ends in .json")
    if out.exists() and out.resolve() not in [path.resolve() for path in paths]:
        raise CoupledQKError(f"{out} exists and is not one of the files to merge: choose another name")
    write(merge([read(path) for path in paths]), out)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """The runs of all outcomes together, with new verdicts. Claims and texts are those of the first outcome."""
    first = outcomes[0]
    outcomes = [first, *(as_part_of(first, other) for other in outcomes[1:])]
    cells = _cells(outcomes)
    if _reaches(first):
        outcomes = [replace(outcome, rows=_reaching(outcome.rows, cells)) for outcome in outcomes]
    parts = [(row, _finished(outcome)[row.label]) for outcome in outcomes for row in outcome.rows]
    labels = dict.fromkeys(row.label for row, _ in parts)
    rows = tuple(_row([part for part in parts if part[0].label == label], label) for label in labels)
    samples = {row.label: row.seeds for row in rows}
    claims = [verdict.claim for verdict in first.verdicts]
    measured = [outcome for outcome in outcomes if _finished(outcome)] or [first]
    merged = replace(
        first,
        date=max(outcome.date for outcome in outcomes),
        metric=_metric(first, measured),
        rows=rows,
        verdicts=tuple(judge_all(claims, samples, first.metric.better)),
        cells=cells,
        origin=joined_origin([outcome.origin for outcome in measured]),
        ladders=_ladders(outcomes, rows),
    )
    return with_changes(merged)


def _metric(first: Outcome, measured: Sequence[Outcome]) -> Measure:
    """The metric of the first outcome, with the definition that the outcomes with finished runs have in common, if any."""
    metrics = [outcome.metric for outcome in measured]
    same = all(metric == metrics[0] for metric in metrics) and metrics[0].key == first.metric.key
    return metrics[0] if same else MEASURES[first.metric.key]


def _check(first: Outcome, other: Outcome) -> None:
    same_metric = other.metric.key == first.metric.key or (_reaches(first) and other.task_measure == first.task_measure)
    if other.scale != first.scale or not same_metric:
        raise CoupledQKError(
            f"{first.name} ({first.metric.name}) and {other.name} ({other.metric.name}) cannot be merged: they need the same "
            "scale and metric"
        )
    for outcome in (first, other):
        if outcome.name == first.name and (outcome.answer or outcome.shifts):
            raise CoupledQKError(
                f"{outcome.name} has results that are computed from the run folders, which cannot be merged: train the seeds "
                "in one folder with `coupledqk reproduce --seeds`"
            )
    keys = [key for key in first.config | other.config if key != "runtime"]
    if differing := [key for key in keys if first.config.get(key) != other.config.get(key)]:
        raise CoupledQKError(
            f"{first.name} and {other.name} differ in the base configuration ({', '.join(differing)}): their runs cannot be "
            "compared"
        )
    if other.name == first.name:
        _check_rows(first, other)
    for corpus in first.origin.corpora.keys() & other.origin.corpora.keys():
        if first.origin.corpora[corpus] != other.origin.corpora[corpus]:
            raise CoupledQKError(f"{first.name} and {other.name} were trained on different texts named {corpus}")


def _check_rows(first: Outcome, other: Outcome) -> None:
    """Raises if the same label stands for different settings, as after an edit of the experiment. The run that a cell starts
    from depends on the seed, so it is not compared."""
    ours = {cell.label: _settings(cell, "init_from") for cell in first.cells}
    for cell in other.cells:
        settings = _settings(cell, "init_from")
        if ours.get(cell.label, settings) != settings:
            raise CoupledQKError(
                f"the settings of {cell.label} differ between the outcomes of {first.name}: its runs cannot be compared"
            )


def as_part_of(first: Outcome, other: Outcome) -> Outcome:
    """Another outcome as it is merged with the first one. Of another experiment, these are the rows that have the settings of a
    row of the first outcome, with its labels. Raises an error if the two cannot be merged."""
    _check(first, other)
    if other.name == first.name:
        return other
    labels = {_settings(cell): cell.label for cell in first.cells}
    found = {cell.label: labels[_settings(cell)] for cell in other.cells if _settings(cell) in labels}
    if not found:
        raise CoupledQKError(f"{other.name} has no row in common with {first.name}: leave it out")
    return replace(
        other,
        ladders=(),
        rows=tuple(replace(row, label=found[row.label]) for row in other.rows if row.label in found),
        cells=tuple(replace(cell, label=found[cell.label]) for cell in other.cells if cell.label in found),
    )


def _settings(cell: CellRecord, *without: str) -> str:
    """The settings of a cell without the seed, which identify its row, as text."""
    return json.dumps({k: v for k, v in cell.settings.items() if k not in ("seed", *without)}, sort_keys=True)


def _finished(outcome: Outcome) -> Counter[str]:
    """The number of finished runs of each row."""
    return Counter(cell.label for cell in outcome.cells if cell.status == "finished")


def _cells(outcomes: Sequence[Outcome]) -> tuple[CellRecord, ...]:
    """The cells of all outcomes, each run once. If there are several records of a run, the finished one is used."""
    found: dict[tuple[str, int], CellRecord] = {}
    for cell in (cell for outcome in outcomes for cell in outcome.cells):
        if (cell.label, cell.seed) not in found or cell.status == "finished":
            found[cell.label, cell.seed] = cell
    order = {row.label: place for outcome in reversed(outcomes) for place, row in enumerate(outcome.rows)}
    return tuple(sorted(found.values(), key=lambda cell: (order[cell.label], cell.seed)))


def _row(parts: Sequence[tuple[Row, int]], label: str) -> Row:
    """Merges rows with the same label, each given with its number of finished runs, by which means over seeds are weighted."""
    paper, parts = parts[0][0].paper, _without_repeats(parts)
    rows = [row for row, _ in parts]
    measured = [part for part in parts if part[1]] or list(parts[:1])
    seeds = _seeds(rows, label)
    keys = dict.fromkeys(key for row, _ in measured for key in row.companions)
    companions = {key: _mean([(row.companions.get(key), n) for row, n in measured]) for key in keys}
    return Row(
        label=label,
        seeds=seeds,
        **moments(seeds),
        final={seed: value for row in rows for seed, value in sorted(row.final.items())},
        companions={key: value for key, value in companions.items() if value is not None},
        paper=paper,
        parameters=measured[0][0].parameters,
        tokens_per_second=_mean([(row.tokens_per_second, n) for row, n in measured]),
        seconds=_mean([(row.seconds, n) for row, n in measured]),
        baselines=measured[0][0].baselines,
        position_losses=_position_losses(measured),
    )


def _without_repeats(parts: Sequence[tuple[Row, int]]) -> Sequence[tuple[Row, int]]:
    """The rows except those whose runs are all contained in another one, since experiments have runs in common."""
    kept: list[int] = []
    for place in sorted(range(len(parts)), key=lambda place: -len(parts[place][0].seeds)):
        if not any(parts[place][0].seeds.items() <= parts[other][0].seeds.items() for other in kept):
            kept.append(place)
    return [parts[place] for place in sorted(kept)]


def _reaches(outcome: Outcome) -> bool:
    return outcome.metric.key == TOKENS_TO_REACH.key


def _reaching(rows: Sequence[Row], cells: Sequence[CellRecord]) -> tuple[Row, ...]:
    """The rows with tokens to reach, which are computed from the curves, since the baseline may come from another outcome."""
    curves = {(cell.label, cell.seed): cell.valid for cell in cells if cell.status == "finished" and cell.valid}
    targets = {seed: curve[-1][2] for (label, seed), curve in curves.items() if label == REACHED}
    found = []
    for row in rows:
        diverged = {seed: math.nan for seed in row.seeds if (row.label, seed) not in curves}
        reached = {
            seed: tokens_to_reach([(tokens, loss) for _, tokens, loss, _ in curve], targets[seed])
            for (label, seed), curve in curves.items()
            if label == row.label and seed in row.seeds and seed in targets
        }
        seeds = diverged | reached
        found.append(replace(row, seeds=seeds, final=seeds, **moments(seeds)))
    return tuple(found)


def _seeds(rows: Sequence[Row], label: str) -> dict[int, float]:
    seeds: dict[int, float] = {}
    for seed, value in (item for row in rows for item in sorted(row.seeds.items())):
        if seed in seeds:
            raise CoupledQKError(f"{label}, seed {seed}, has a result in two outcomes: leave one of them out")
        seeds[seed] = value
    return seeds


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    """The weighted mean of (value, weight) pairs, ignoring those whose value is None."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _position_losses(parts: Sequence[tuple[Row, int]]) -> tuple[PositionLoss, ...]:
    having = [(row.position_losses, n) for row, n in parts if row.position_losses and n]
    columns = zip(*(losses for losses, _ in having), strict=True)
    weights = [n for _, n in having]
    return tuple(
        replace(column[0], loss=statistics.fmean([part.loss for part in column], weights)) for column in columns
    )


def _ladders(outcomes: Sequence[Outcome], rows: Sequence[Row]) -> tuple[Ladder, ...]:
    """The ladders of all outcomes, each fitted again to the merged rows, and the published ones unchanged."""
    samples = {row.label: row.seeds for row in rows}
    parameters = {row.label: row.parameters for row in rows if row.parameters is not None}
    found: dict[str, Ladder] = {}
    for ladder in (ladder for outcome in outcomes for ladder in outcome.ladders):
        found.setdefault(ladder.name, ladder)
    fitted = [fit_ladder(ladder.spec, samples, parameters) if ladder.spec else ladder for ladder in found.values()]
    return tuple(sorted(fitted, key=lambda ladder: ladder.spec is None))
