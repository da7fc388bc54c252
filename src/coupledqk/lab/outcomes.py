"""From run folders to the outcome of an experiment. Torch-free."""

import dataclasses
import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .. import outcome as report
from .. import provenance
from ..config import identity
from ..outcome import CellRecord, Origin, Outcome, Row, VerdictRecord
from ..run_folder import RunFolder
from ..schema import flat, from_dict, to_dict
from .cells import Cell, Plan, base_config, failure, status
from .changes import with_changes
from .verdicts import judge_all

CURVE_POINTS = 60
PLACES = ("data_dir", "init_from")
"""Settings that say where something lies on this machine."""

Values = dict[str, dict[int, float]]
"""By label, then by seed."""


def write_outcome(plan: Plan) -> Outcome:
    found = with_changes(outcome(plan))
    report.write(found, plan.outcome)
    return found


def outcome(plan: Plan) -> Outcome:
    """What the runs of a plan say, however many of them are finished."""
    experiment, scale = plan.experiment, plan.scale
    best, final = measured(plan, "best"), measured(plan, "final")
    finished = [plan.run(cell) for cell in plan.cells if plan.run(cell).result]
    base = to_dict(base_config(scale))
    definition = finished[0].result["definition"] if finished and scale.metric.name == "perplexity" else None
    return Outcome(
        experiment=experiment.name,
        title=experiment.title,
        source=experiment.source,
        caption=experiment.caption.strip(),
        scale=plan.scale_name,
        date=datetime.date.today().isoformat(),
        command=experiment.command or f"coupledqk reproduce {experiment.name} --scale {plan.scale_name}",
        metric=dataclasses.replace(scale.metric, definition=definition or scale.metric.definition),
        rows=tuple(_row(plan, label, best[label], final[label]) for label in plan.labels),
        verdicts=tuple(
            from_dict(VerdictRecord, dataclasses.asdict(verdict)) for verdict in judge_all(scale.claims, best)
        ),
        cells=tuple(_record(plan, cell, flat(base)) for cell in plan.cells),
        config=_without_places(base),
        origin=_origin(finished),
    )


def measured(plan: Plan, which: str) -> Values:
    """The metric of every finished cell, at its best or at the end; NaN for a run that diverged, infinity for one that never
    got there."""
    key, place = plan.scale.metric.key.split(".")
    values: Values = {label: {} for label in plan.labels}
    for cell in plan.cells:
        run = plan.run(cell)
        if run.result and key == "tokens_to_reach":
            if (tokens := _tokens_to_reach(plan, cell, baseline=place)) is not None:
                values[cell.label][cell.seed] = tokens
        elif run.result:
            values[cell.label][cell.seed] = run.result[which][place]
        elif failure(run).get("diverged"):
            values[cell.label][cell.seed] = math.nan
    return values


def _tokens_to_reach(plan: Plan, cell: Cell, baseline: str) -> float | None:
    """Infinite if the loss was never reached; None while the baseline of this seed is not finished."""
    other = next((c for c in plan.cells if c.label == baseline and c.seed == cell.seed), None)
    target = plan.run(other).result.get("final", {}).get("loss") if other else None
    if target is None:
        return None
    before: Mapping[str, Any] | None = None
    for record in plan.run(cell).metrics("valid"):
        if record["loss"] <= target:
            if before is None:
                return record["tokens"]
            share = (before["loss"] - target) / (before["loss"] - record["loss"])
            return before["tokens"] + share * (record["tokens"] - before["tokens"])
        before = record
    return math.inf


def _row(plan: Plan, label: str, best: dict[int, float], final: dict[int, float]) -> Row:
    runs = [plan.run(cell) for cell in plan.cells if cell.label == label]
    finished = [run for run in runs if run.result]
    values = [value for value in best.values() if math.isfinite(value)]
    bits = [run.result["best"]["bits_per_byte"] for run in finished if "bits_per_byte" in run.result["best"]]
    seconds = [run.result["seconds"] for run in finished if run.result["seconds"]]
    speeds = [run.result["tokens_per_second"] for run in finished if run.result["tokens_per_second"]]
    return Row(
        label=label,
        seeds=best,
        mean=statistics.fmean(values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 else None,
        n=len(values),
        final=final,
        bits_per_byte=statistics.fmean(bits) if bits else None,
        paper=plan.scale.published.get(label),
        parameters=finished[0].info["parameters"] if finished else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        seconds=statistics.fmean(seconds) if seconds else None,
    )


def _record(plan: Plan, cell: Cell, base: dict[str, Any]) -> CellRecord:
    run, own = plan.run(cell), flat(to_dict(cell.config))
    settings = {key: value for key, value in own.items() if base.get(key) != value and not key.startswith("runtime.")}
    error = failure(run).get("error")
    train, valid = _finished_curves(run.path) if run.result else _curves(run)
    return CellRecord(
        label=cell.label,
        seed=cell.seed,
        identity=identity(cell.config),
        name=cell.name,
        status=status(run),
        error=error.replace(f"{plan.out / 'runs'}/", "") if error else None,
        settings=_without_places(settings) | ({"init_from": cell.needs.name} if cell.needs else {}),
        train=train,
        valid=valid,
    )


Curve = tuple[tuple[float, ...], ...]


def _curves(run: RunFolder) -> tuple[Curve, Curve]:
    train = thinned([(r["step"], r["tokens"], r["loss"]) for r in run.metrics("train")])
    measure = [(r, r["perplexity"] if "perplexity" in r else r["accuracy"]) for r in run.metrics("valid")]
    return train, tuple((r["step"], r["tokens"], r["loss"], value) for r, value in measure)


@cache
def _finished_curves(path: Path) -> tuple[Curve, Curve]:
    """A finished run does not change; reading it again after every cell of a grid would take longer than all the rest."""
    return _curves(RunFolder(path))


def thinned(points: Sequence[tuple[float, ...]]) -> Curve:
    """A curve as at most CURVE_POINTS points, each the mean of its stretch."""
    size = math.ceil(len(points) / CURVE_POINTS) or 1
    stretches = (points[start : start + size] for start in range(0, len(points), size))
    return tuple(tuple(statistics.fmean(column) for column in zip(*part, strict=True)) for part in stretches)


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested or flat settings without PLACES; of a corpus in a local file or folder, its name."""
    kept: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            kept[key] = _without_places(value)
        elif key.rpartition(".")[2] == "corpus":
            kept[key] = Path(value).name
        elif key.rpartition(".")[2] not in PLACES:
            kept[key] = value
    return kept


def _origin(finished: Sequence[RunFolder]) -> Origin:
    if not finished:
        return Origin(provenance.commit(), provenance.machine(), provenance.versions(), {})
    infos = sorted((run.info for run in finished), key=lambda info: info["started"])
    corpora = {Path(info["corpus"]["corpus"]).name: info["corpus"]["hash"] for info in infos}
    return Origin(infos[-1]["commit"], infos[-1]["machine"], infos[-1]["versions"], corpora)
