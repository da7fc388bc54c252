"""Computes the outcome of an experiment from its run folders. Torch-free."""

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from .. import provenance
from ..baselines import PositionLoss, read_baselines, read_position_losses
from ..config import identity
from ..measure import PERPLEXITY, TOKENS_TO_REACH, Measure
from ..outcome import CellRecord, Change, Ladder, Origin, Outcome, Row
from ..run_folder import RunFolder
from ..schema import flat, to_dict
from ..statistics import UntestableError, mean_of, relative_differences
from .cells import REACHED, Cell, Plan, base_config, failure, status
from .experiment import Scale
from .rungs import fit_ladder
from .shifts import find_shifts
from .verdicts import judge_all

CURVE_POINTS = 60
PLACES = ("data_dir", "model_dir", "init_from")
"""Settings that are paths on this machine."""

AND = " and "
"""Separator between several commits or machines."""

Values = dict[str, dict[int, float]]
"""Values by label and seed."""


def outcome(plan: Plan) -> Outcome:
    """The outcome of the finished run folders of a plan, without reused results."""
    experiment, scale = plan.experiment, plan.scale
    best, final = measured(plan, "best"), measured(plan, "final")
    finished = [plan.run(cell) for cell in plan.cells if plan.run(cell).result]
    base = to_dict(base_config(scale))
    metric, task_measure = scale.metric, plan.cells[0].config.task.measure
    definitions = {run.result["definition"] for run in finished}
    if len(definitions) == 1 and metric == task_measure:  # runs on different texts have different definitions
        metric = replace(metric, definition=definitions.pop())
    found = Outcome(
        experiment=experiment.name,
        title=experiment.title,
        source=experiment.source,
        caption=experiment.caption.strip(),
        scale=plan.scale_name,
        date=datetime.date.today().isoformat(),
        command=experiment.command or _command(plan),
        metric=metric,
        task_measure=task_measure,
        rows=tuple(_row(plan, label, best[label], final[label]) for label in plan.labels),
        verdicts=tuple(judge_all(scale.claims, best, scale.metric.better)),
        cells=tuple(_record(plan, cell, flat(base)) for cell in plan.cells),
        config=_without_places(base),
        origin=_origin(finished),
        ladders=_ladders(plan, best),
        shifts=find_shifts(plan),
    )
    return with_changes(found)


def _command(plan: Plan) -> str:
    """The command that runs a plan, with the name of a user's file instead of its path."""
    named = Path(plan.experiment.file).name or plan.experiment.name
    return f"coupledqk reproduce {named} --scale {plan.scale_name}"


def _ladders(plan: Plan, samples: Values) -> tuple[Ladder, ...]:
    if not isinstance(plan.scale, Scale) or not plan.scale.ladders:
        return ()
    from .ladder import paper_ladder

    parameters = {cell.label: plan.run(cell).info["parameters"] for cell in plan.cells if plan.run(cell).info}
    planned = [
        spec for spec in plan.scale.ladders if any(spec.variant.format(size=size) in plan.labels for size in spec.sizes)
    ]
    fitted = tuple(fit_ladder(spec, samples, parameters) for spec in planned)
    return (*fitted, paper_ladder()) if plan.scale.metric.key == PERPLEXITY.key else fitted


def measured(plan: Plan, which: str) -> Values:
    """The metric of every finished cell, at the best validation or at the end. It is NaN for a run that diverged and infinite
    for a run that did not reach the metric's target."""
    values: Values = {label: {} for label in plan.labels}
    for cell in plan.cells:
        run = plan.run(cell)
        if run.result and plan.scale.metric == TOKENS_TO_REACH:
            if (tokens := _tokens_to_reach(plan, cell)) is not None:
                values[cell.label][cell.seed] = tokens
        elif run.result:
            values[cell.label][cell.seed] = run.result[which][plan.scale.metric.key]
        elif failure(run).get("diverged"):
            values[cell.label][cell.seed] = math.nan
    return values


def _tokens_to_reach(plan: Plan, cell: Cell) -> float | None:
    """The metric TOKENS_TO_REACH of a cell; None if the baseline with this seed is not finished."""
    other = next((c for c in plan.cells if c.label == REACHED and c.seed == cell.seed), None)
    target = plan.run(other).result.get("final", {}).get("loss") if other else None
    if target is None:
        return None
    return tokens_to_reach([(record["tokens"], record["loss"]) for record in plan.run(cell).metrics("valid")], target)


def tokens_to_reach(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Tokens until a validation curve of (tokens, loss) reaches a loss, interpolated between evaluations; infinite if it does
    not reach it."""
    before: tuple[float, float] | None = None
    for tokens, loss in curve:
        if loss <= target:
            if before is None:
                return tokens
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (tokens - before[0])
        before = tokens, loss
    return math.inf


def _row(plan: Plan, label: str, best: dict[int, float], final: dict[int, float]) -> Row:
    runs = [plan.run(cell) for cell in plan.cells if cell.label == label]
    finished = [run for run in runs if run.result]
    seconds = [run.result["seconds"] for run in finished if run.result["seconds"]]
    speeds = [run.result["tokens_per_second"] for run in finished if run.result["tokens_per_second"]]
    return Row(
        label=label,
        seeds=best,
        final=final,
        **moments(best),
        companions=_companions(plan.cells[0].config.task.measure, [run.result["best"] for run in finished]),
        paper=plan.scale.published.get(label),
        parameters=finished[0].info["parameters"] if finished else None,
        tokens_per_second=statistics.median(speeds) if speeds else None,
        seconds=statistics.fmean(seconds) if seconds else None,
        baselines=read_baselines(finished[0].result) if finished else (),
        position_losses=_mean_position_losses([read_position_losses(run.result) for run in finished]),
    )


def moments(seeds: Mapping[int, float]) -> dict[str, Any]:
    """Mean, standard deviation and number of the finite values of a row."""
    values = [value for value in seeds.values() if math.isfinite(value)]
    mean, std = statistics.fmean(values) if values else None, statistics.stdev(values) if len(values) > 1 else None
    return {"mean": mean, "std": std, "n": len(values)}


def _mean_position_losses(runs: Sequence[tuple[PositionLoss, ...]]) -> tuple[PositionLoss, ...]:
    columns = zip(*(run for run in runs if run), strict=True)
    return tuple(replace(column[0], loss=statistics.fmean(part.loss for part in column)) for column in columns)


def _companions(measure: Measure, results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values = {
        beside.key: [result[beside.key] for result in results if beside.key in result] for beside in measure.companions
    }
    return {key: statistics.fmean(found) for key, found in values.items() if found}


def with_changes(outcome: Outcome) -> Outcome:
    """The outcome with `Row.change` for the rows that share at least two seeds with their baseline."""
    rows = {row.label: row for row in outcome.rows}
    changes = {
        label: _change(rows[label], rows[baseline])
        for label, baseline in outcome.baselines.items()
        if label in rows and baseline in rows
    }
    return replace(outcome, rows=tuple(replace(row, change=changes.get(row.label)) for row in outcome.rows))


def _change(row: Row, baseline: Row) -> Change | None:
    """The change of a row with an uncorrected 95% interval. Only claims are corrected for multiple comparisons."""
    shared = [seed for seed in row.seeds if math.isfinite(row.seeds[seed] - baseline.seeds.get(seed, math.nan))]
    ours, theirs = ([of.seeds[seed] for seed in shared] for of in (row, baseline))
    try:
        differences = relative_differences(ours, theirs)
        estimate = mean_of(differences)
    except UntestableError:
        return None
    return Change(baseline.label, estimate.value, estimate.interval(), len(shared))


def _record(plan: Plan, cell: Cell, base: dict[str, Any]) -> CellRecord:
    run, own = plan.run(cell), flat(to_dict(cell.config))
    settings = {key: value for key, value in own.items() if base.get(key) != value and not key.startswith("runtime.")}
    error = failure(run).get("error")
    key = cell.config.task.measure.key
    train, valid = _finished_curves(run.path, key) if run.result else _curves(run, key)
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


def _curves(run: RunFolder, key: str) -> tuple[Curve, Curve]:
    train = thinned([(r["step"], r["tokens"], r["loss"]) for r in run.metrics("train")])
    return train, tuple((r["step"], r["tokens"], r["loss"], r[key]) for r in run.metrics("valid"))


@cache
def _finished_curves(path: Path, key: str) -> tuple[Curve, Curve]:
    """The curves of a finished run. They are cached, because reading all runs again after every cell would dominate the
    cost."""
    return _curves(RunFolder(path), key)


def thinned(points: Sequence[tuple[float, ...]]) -> Curve:
    """A curve reduced to at most CURVE_POINTS points, each the mean of a few successive ones."""
    size = math.ceil(len(points) / CURVE_POINTS) or 1
    stretches = (points[start : start + size] for start in range(0, len(points), size))
    return tuple(tuple(statistics.fmean(column) for column in zip(*part, strict=True)) for part in stretches)


def _without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested or flat settings without PLACES, and with the name of a local corpus instead of its path."""
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
    infos = [run.info for run in finished]
    starts = sorted((start for info in infos for start in info["starts"]), key=lambda start: start["started"])
    corpora = {Path(info["corpus"]["corpus"]).name: info["corpus"]["hash"] for info in infos}
    parts = [Origin(start["commit"], start["machine"], start["versions"], corpora) for start in starts]
    return joined_origin(parts)


def joined_origin(origins: Sequence[Origin]) -> Origin:
    """The provenance with the versions of the last part, and the commits and machines of all parts."""
    commits, machines = (
        dict.fromkeys(part for text in texts if text for part in text.split(AND))
        for texts in ([origin.commit for origin in origins], [origin.machine for origin in origins])
    )
    corpora = {name: found for origin in origins for name, found in origin.corpora.items()}
    return Origin(AND.join(commits) or None, AND.join(machines), origins[-1].versions, corpora)
