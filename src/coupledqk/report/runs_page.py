"""The report on a few runs: results, learning curves, generated text, and differences in their settings."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config import RunConfig, identity
from ..errors import CoupledQKError
from ..files import write_atomic
from ..measure import Measure
from ..schema import flat, to_dict
from .axis import drawable
from .baselines import (
    NOTE,
    LanguageModel,
    baseline_series,
    baselines_table,
    context_series,
    models_of_runs,
    objections,
)
from .chart import Point, Series, line_chart
from .curves import context_panel
from .page import render
from .snapshot import Snapshot

MOST_POINTS = 80


class Sample(NamedTuple):
    """A continuation of a prompt by a run; `text` does not include the prompt."""

    run: str
    prompt: str
    text: str


class Comparison(NamedTuple):
    """Settings that all runs share, and the values of each run for the others."""

    shared: dict[str, Any]
    different: dict[str, list[Any]]


class HeadTable(NamedTuple):
    """Learned values of the heads of a run, with one row per layer."""

    caption: str
    layers: list[list[float]]

    @property
    def largest(self) -> float:
        return max(abs(value) for layer in self.layers for value in layer) or 1.0


def write_page(
    runs: Sequence[Path],
    out: Path,
    title: str,
    intro: Sequence[str] = (),
    samples: Sequence[Sample | tuple[str, str, str]] = (),
) -> None:
    """Writes a self-contained HTML report on runs, finished or not.

    `intro` contains paragraphs of plain text. `samples` contains continuations of prompts by the runs, under any names.
    """
    if not runs:
        raise CoupledQKError("no runs given: name at least one run folder")
    snapshots = [Snapshot.read(path) for path in runs]
    names, measure = short_names(snapshots), _measure(snapshots)
    models = models_of_runs(names, snapshots)
    page = render(
        "runs.html",
        title=title,
        intro=intro,
        measure=measure,
        names=names,
        snapshots=snapshots,
        definitions=_definitions(names, snapshots, measure),
        cautions=_cautions(snapshots) + objections(models),
        baselines=baselines_table(models),
        baselines_note=NOTE,
        charts=learning_curves(names, snapshots, measure, models),
        averaged_over=max(_group_size(len(snapshot.train)) for snapshot in snapshots),
        samples=_by_prompt(samples),
        head_tables=head_tables(names, snapshots),
        settings=shared_and_different([flat(to_dict(snapshot.config)) for snapshot in snapshots]),
        origin=shared_and_different([_origin(snapshot, name) for snapshot, name in zip(snapshots, names, strict=True)]),
    )
    write_atomic(out, page)


def short_names(snapshots: Sequence[Snapshot]) -> list[str]:
    """The shortest names that distinguish the runs: the variant, the run's name, its folder's name or its whole path."""
    variants = [str(snapshot.info.get("variant", "")) for snapshot in snapshots]
    names = [str(snapshot.info.get("name", "")) for snapshot in snapshots]
    folders = [snapshot.path.resolve().name for snapshot in snapshots]
    for choice in (variants, names, folders):
        if len(set(choice)) == len(choice):
            return choice
    return [str(snapshot.path) for snapshot in snapshots]


def _measure(snapshots: Sequence[Snapshot]) -> Measure:
    measures = {snapshot.config.task.measure for snapshot in snapshots}
    if len(measures) > 1:
        names = ", others by ".join(sorted((measure.name for measure in measures), reverse=True))
        raise CoupledQKError(f"some runs are measured by {names}: give runs of one task")
    return measures.pop()


def _definitions(names: Sequence[str], snapshots: Sequence[Snapshot], measure: Measure) -> dict[str, list[str]]:
    """Each definition of the measure with the runs that use it. A finished run contains its own definition."""
    definitions: dict[str, list[str]] = {}
    for name, snapshot in zip(names, snapshots, strict=True):
        if snapshot.result:
            definitions.setdefault(snapshot.result["definition"], []).append(name)
    return definitions or {measure.definition: list(names)}


def _cautions(snapshots: Sequence[Snapshot]) -> list[str]:
    """Warnings about comparing the numbers."""
    cautions = []
    seeds: dict[str, set[str]] = {}
    for snapshot in snapshots:
        without_seed = dataclasses.replace(snapshot.config, seed=0, init_seed=None, data_seed=None)
        seeds.setdefault(identity(without_seed), set()).add(identity(snapshot.config))
    if any(len(own) == 1 for own in seeds.values()):
        cautions.append(
            "One seed does not support a claim: differences of this size may be noise. Train several seeds before concluding."
        )
    texts = {(corpus.get("hash"), corpus.get("tokenizer")) for corpus in (s.info["corpus"] for s in snapshots)}
    if len(texts) > 1:
        cautions.append("The runs use different corpora or tokenizers: their perplexities cannot be compared.")
    return cautions


def learning_curves(
    names: Sequence[str], snapshots: Sequence[Snapshot], measure: Measure, models: Sequence[LanguageModel]
) -> list[str]:
    """Charts of the training loss, of the measure at validation with n-gram models, and of the loss by length of context."""
    train, valid, log = [], [], measure.log_scale
    for look, (name, snapshot) in enumerate(zip(names, snapshots, strict=True)):
        losses = averaged([(r["step"], r["loss"]) for r in snapshot.train])
        values = [(r["step"], r[measure.key]) for r in snapshot.valid if drawable(r[measure.key], log=log)]
        train += [Series(name, losses, look=look)] if losses else []
        valid += [Series(name, values, look=look)] if values else []
    charts = []
    if train:
        charts.append(line_chart(train, "step", f"loss, {measure.loss_unit}", title="Training loss"))
    if valid:
        label = f"{measure.name}, log scale" if log else measure.name
        valid += baseline_series(models, measure, valid)
        charts.append(line_chart(valid, "step", label, log_y=log, title=f"Validation {measure.name}"))
    if by_context := context_series(models):
        charts.append(context_panel(by_context).svg())
    return charts


def averaged(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS points, each the mean of a few successive ones. Points that cannot be drawn are omitted."""
    size = _group_size(len(points))
    points = [point for point in points if drawable(point[1], log=False)]
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _group_size(n_points: int) -> int:
    return max(1, math.ceil(n_points / MOST_POINTS))


def head_tables(names: Sequence[str], snapshots: Sequence[Snapshot]) -> list[HeadTable]:
    tables = []
    for name, snapshot in zip(names, snapshots, strict=True):
        latest = snapshot.latest or {}
        for key, meaning in (("dt", _step_size(snapshot.config)), ("lambda", "weight λ of the second map")):
            if key in latest:
                tables.append(HeadTable(f"{name}: {meaning}, after {latest['step']:,} steps", latest[key]))
    return tables


def _step_size(config: RunConfig) -> str:
    dynamics = config.model.attention.dynamics
    return "step size dt" if dynamics.gate or config.init_from else f"step size dt, initially {dynamics.step_size}"


def _by_prompt(samples: Sequence[tuple[str, str, str]]) -> dict[str, list[tuple[str, str]]]:
    prompts: dict[str, list[tuple[str, str]]] = {}
    for run, prompt, text in samples:
        prompts.setdefault(prompt, []).append((run, text))
    return prompts


def _origin(snapshot: Snapshot, name: str) -> dict[str, Any]:
    """The provenance of a run, without information that is elsewhere on the page."""
    said = {"variant", "parameters"} | ({"name"} if snapshot.info.get("name", "") == name else set())
    *earlier, latest = snapshot.info["starts"]
    resumes = {"resumes": len(earlier)} if earlier else {}
    info = {key: value for key, value in snapshot.info.items() if key not in (*said, "starts")}
    return flat({**info, **latest, **resumes})


def shared_and_different(tables: Sequence[Mapping[str, Any]]) -> Comparison:
    comparison = Comparison({}, {})
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table.get(key) for table in tables]
        if all(value == values[0] for value in values):
            comparison.shared[key] = values[0]
        else:
            comparison.different[key] = values
    return comparison
