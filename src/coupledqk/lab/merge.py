"""Merges outcomes whose runs were trained at different times or on different machines. Torch-free.

The outcome files contain everything required; the run folders are not needed. Outcomes of other experiments contribute the rows
that they have in common with the first outcome.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..baselines import PositionLoss
from ..errors import CoupledQKError
from ..measure import MEASURES
from ..outcome import CellRecord, Ladder, Origin, Outcome, Row, read, write
from .outcomes import with_changes
from .rungs import fit_ladder
from .verdicts import judge_all


def merge_files(paths: Sequence[Path], out: Path) -> None:
    """Merges outcome files and writes the result to `out`. It overwrites an existing file only if it is one of the inputs."""
    if len(paths) < 2:
        raise CoupledQKError("merging requires at least two outcome files")
    if out.exists() and out.resolve() not in [path.resolve() for path in paths]:
        raise CoupledQKError(f"{out} exists and is not one of the files to merge: choose another name")
    write(merge([read(path) for path in paths]), out)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    """The runs of all outcomes together, with new verdicts. Claims and texts are those of the first outcome."""
    first = outcomes[0]
    for other in outcomes[1:]:
        _check(first, other)
    outcomes = [first, *(_as_part_of(first, other) for other in outcomes[1:])]
    labels = dict.fromkeys(row.label for outcome in outcomes for row in outcome.rows)
    rows = tuple(
        _row([row for outcome in outcomes for row in outcome.rows if row.label == label], label) for label in labels
    )
    samples = {row.label: row.seeds for row in rows}
    claims = [verdict.claim for verdict in first.verdicts]
    merged = replace(
        first,
        date=max(outcome.date for outcome in outcomes),
        metric=first.metric
        if all(outcome.metric == first.metric for outcome in outcomes)
        else MEASURES[first.metric.key],
        rows=rows,
        verdicts=tuple(judge_all(claims, samples, first.metric.better)),
        cells=_cells(outcomes),
        origin=_origin([outcome.origin for outcome in outcomes]),
        ladders=_ladders(outcomes, rows),
    )
    return with_changes(merged)


def _check(first: Outcome, other: Outcome) -> None:
    if (other.scale, other.metric.key) != (first.scale, first.metric.key):
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
    differing = [key for key in first.config if key != "runtime" and first.config[key] != other.config.get(key)]
    if differing:
        raise CoupledQKError(
            f"{first.name} and {other.name} differ in the base configuration ({', '.join(differing)}): their runs cannot be "
            "compared"
        )
    for corpus in first.origin.corpora.keys() & other.origin.corpora.keys():
        if first.origin.corpora[corpus] != other.origin.corpora[corpus]:
            raise CoupledQKError(f"{first.name} and {other.name} were trained on different texts named {corpus}")


def _as_part_of(first: Outcome, other: Outcome) -> Outcome:
    """The rows of another experiment that have the settings of a row of the first outcome, with its labels."""
    if other.name == first.name:
        return other
    labels = {_settings(cell): cell.label for cell in first.cells}
    found = {cell.label: labels[_settings(cell)] for cell in other.cells if _settings(cell) in labels}
    if not found:
        raise CoupledQKError(f"{other.name} has no row in common with {first.name}: leave it out")
    return replace(
        other,
        rows=tuple(replace(row, label=found[row.label]) for row in other.rows if row.label in found),
        cells=tuple(replace(cell, label=found[cell.label]) for cell in other.cells if cell.label in found),
    )


def _settings(cell: CellRecord) -> str:
    """What defines the row of a cell: its settings without the seed, as text."""
    return json.dumps({key: value for key, value in cell.settings.items() if key != "seed"}, sort_keys=True)


def _cells(outcomes: Sequence[Outcome]) -> tuple[CellRecord, ...]:
    """The cells of all outcomes, each run once. If there are several records of a run, the finished one is used."""
    found: dict[tuple[str, int], CellRecord] = {}
    for cell in (cell for outcome in outcomes for cell in outcome.cells):
        known = found.get((cell.label, cell.seed))
        if known is not None and known.status == cell.status == "finished":
            raise CoupledQKError(f"{cell.label}, seed {cell.seed}, is finished in two outcomes: leave one of them out")
        if known is None or cell.status == "finished":
            found[cell.label, cell.seed] = cell
    order = {row.label: place for outcome in reversed(outcomes) for place, row in enumerate(outcome.rows)}
    return tuple(sorted(found.values(), key=lambda cell: (order[cell.label], cell.seed)))


def _row(rows: Sequence[Row], label: str) -> Row:
    """Merges rows with the same label. Means over seeds are weighted by the number of seeds."""
    measured = [row for row in rows if row.n] or list(rows[:1])
    seeds = {seed: value for row in rows for seed, value in sorted(row.seeds.items())}
    values = [value for value in seeds.values() if math.isfinite(value)]
    companions = {key for row in measured for key in row.companions}
    return Row(
        label=label,
        seeds=seeds,
        mean=statistics.fmean(values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 else None,
        n=len(values),
        final={seed: value for row in rows for seed, value in sorted(row.final.items())},
        companions={key: _mean([(row.companions.get(key), row.n) for row in measured]) or 0.0 for key in companions},
        paper=rows[0].paper,
        parameters=measured[0].parameters,
        tokens_per_second=_mean([(row.tokens_per_second, row.n) for row in measured]),
        seconds=_mean([(row.seconds, row.n) for row in measured]),
        baselines=measured[0].baselines,
        position_losses=_position_losses(measured),
    )


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    """The weighted mean of (value, weight) pairs, ignoring those whose value is None."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _position_losses(rows: Sequence[Row]) -> tuple[PositionLoss, ...]:
    having = [row for row in rows if row.position_losses]
    columns = zip(*(row.position_losses for row in having), strict=True)
    weights = [row.n for row in having]
    return tuple(
        replace(column[0], loss=statistics.fmean([part.loss for part in column], weights)) for column in columns
    )


def _ladders(outcomes: Sequence[Outcome], rows: Sequence[Row]) -> tuple[Ladder, ...]:
    """The ladders of all outcomes, each fitted again to the merged rows, and the published ones as they are."""
    samples = {row.label: row.seeds for row in rows}
    parameters = {row.label: row.parameters for row in rows if row.parameters is not None}
    found = {ladder.name: ladder for outcome in outcomes for ladder in outcome.ladders}
    fitted = [fit_ladder(ladder.spec, samples, parameters) if ladder.spec else ladder for ladder in found.values()]
    return tuple(sorted(fitted, key=lambda ladder: ladder.spec is None))


def _origin(origins: Sequence[Origin]) -> Origin:
    """The provenance with the versions of the last outcome, and the commits and machines of all."""
    commits = dict.fromkeys(origin.commit for origin in origins if origin.commit)
    machines = dict.fromkeys(origin.machine for origin in origins)
    corpora = {name: found for origin in origins for name, found in origin.corpora.items()}
    return Origin(" and ".join(commits) or None, " and ".join(machines), origins[-1].versions, corpora)
