"""Expands an experiment into its cells, the runs that fill its table. Torch-free."""

import itertools
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import DataConfig, PretrainedConfig, RunConfig, SentenceConfig
from ..errors import CoupledQKError
from ..measure import ACCURACY, TOKENS_TO_REACH
from ..outcome import Outcome, Status
from ..outcome_file import read
from ..recipes import recipe
from ..run_folder import RunFolder
from ..schema import change, from_dict, to_dict
from .experiment import Cell, Experiment, Grid, ListedScale, Scale, scale_of


@dataclass(frozen=True)
class Plan:
    """An experiment at one scale, its cells, and the folder of its runs."""

    experiment: Experiment
    scale_name: str
    cells: tuple[Cell, ...]
    out: Path
    reused: tuple[Outcome, ...] = ()
    """Earlier outcomes with results of this plan, whose runs are not trained again (`reuse.with_reused`)."""

    @property
    def scale(self) -> Scale | ListedScale:
        return scale_of(self.experiment, self.scale_name)

    @property
    def outcome(self) -> Path:
        return self.out / f"{self.experiment.name}-{self.scale_name}.json"

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(cell.label for cell in self.cells))

    @property
    def known_labels(self) -> list[str]:
        """Labels of all rows of the experiment, including optional rows that the plan does not contain."""
        if isinstance(self.scale, ListedScale):
            return list(dict.fromkeys(cell.label for cell in self.scale.cells))
        return _grid_labels(self.scale, self.experiment.name)

    @property
    def reused_results(self) -> set[tuple[str, int]]:
        """Label and seed of every result in the reused outcomes."""
        return {(row.label, seed) for outcome in self.reused for row in outcome.rows for seed in row.seeds}

    @property
    def own_cells(self) -> tuple[Cell, ...]:
        """The cells whose results are not in a reused outcome."""
        reused = self.reused_results
        return tuple(cell for cell in self.cells if (cell.label, cell.seed) not in reused)

    def run(self, cell: Cell) -> RunFolder:
        return RunFolder(self.out / "runs" / cell.name)


ERROR_FILE = "error.json"
"""The file in a run's folder that records why the run failed."""
REACHED = "standard"
"""Label of the row whose final loss is the target of TOKENS_TO_REACH."""


def status(run: RunFolder) -> Status:
    """The status of a cell, from its run folder."""
    if not (run.path / "config.toml").is_file():
        return "waiting"
    found = run.status
    return "failed" if found == "interrupted" and (run.path / ERROR_FILE).is_file() else found


def failure(run: RunFolder) -> dict[str, Any]:
    """The record of why a cell failed; empty if it did not."""
    advice = "move it away; the cell is then trained again"
    return run.read_json(ERROR_FILE, advice) if status(run) == "failed" else {}


def make_plan(
    experiment: Experiment,
    scale_name: str,
    out: Path = Path("lab"),
    seeds: Sequence[int] = (),
    data_dir: Path | None = None,
    rows: Sequence[str] = (),
    compiled: bool = False,
) -> Plan:
    """The runs of an experiment and where they are stored.

    `seeds` replace the seeds of the experiment. If `rows` are given, the seeds are added to these rows of a grid that was run
    before, and the other rows keep their seeds; optional rows have no other seeds. If `compiled`, all models are compiled,
    regardless of the experiment's settings.
    """
    scale = scale_of(experiment, scale_name)
    where = f"{experiment.file or experiment.name}, {scale_name}"
    plan = Plan(experiment, scale_name, (), out)
    before = _seeds_so_far(plan) if rows else {}
    if rows and not seeds:
        raise CoupledQKError(f"--rows {' '.join(rows)}: expected the seeds to add to them, such as --seeds 0-7")

    def seeds_of(label: str, own: Sequence[int]) -> Sequence[int]:
        if not rows:
            return seeds if seeds and own else own
        return sorted({*before.get(label, own), *(seeds if label in rows else ())})

    if isinstance(scale, ListedScale):
        cells = [cell for cell in scale.cells if not seeds or cell.seed in seeds]
    else:
        cells = _grid_cells(scale, seeds_of, out / "runs", data_dir, where)
    if not cells:
        which = f"no run has seed {' or '.join(map(str, seeds))}" if seeds else "the grid has no row to train"
        raise CoupledQKError(f"{where}: {which}")
    _check(cells, scale, where, rows)
    _check_measures(cells, scale, where)
    return replace(plan, cells=tuple(map(_compiled, cells)) if compiled else tuple(cells))


def _compiled(cell: Cell) -> Cell:
    needs = _compiled(cell.needs) if cell.needs else None
    return replace(cell, config=change(cell.config, {"runtime.compile": True}), needs=needs)


def _seeds_so_far(plan: Plan) -> dict[str, set[int]]:
    """The seeds of each row in the existing outcome of the plan."""
    if not plan.outcome.is_file():
        return {}
    found: dict[str, set[int]] = {}
    for cell in read(plan.outcome).cells:
        found.setdefault(cell.label, set()).add(cell.seed)
    return found


def _grid_cells(
    scale: Scale,
    seeds_of: Callable[[str, Sequence[int]], Sequence[int]],
    runs: Path,
    data_dir: Path | None,
    where: str,
) -> list[Cell]:
    cells = []
    for grid in scale.grid:
        for label, variant, settings in _rows(grid, where):
            own = () if grid.optional else scale.seeds_of.get(label, scale.seeds)
            for seed in seeds_of(label, own):
                try:
                    cells.append(_cell(scale, label, variant, settings, seed, runs, data_dir))
                except CoupledQKError as error:
                    raise CoupledQKError(f"{where}, {label}: {error}") from None
    return cells


def base_config(scale: Scale | ListedScale) -> RunConfig:
    """The base configuration that the settings of cells are compared with.

    It has standard attention; for listed runs it is the first one. If the task starts from another run, the base configuration
    has the recipe's task instead.
    """
    if isinstance(scale, ListedScale):
        return scale.cells[0].config
    if scale.needs is not None:
        return recipe(scale.recipe, **{k: v for k, v in scale.settings.items() if k != "init_from"})
    return _configure(recipe(scale.recipe), scale.task, scale.settings)


def with_needed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells and their prerequisites, each once, with prerequisites first."""
    found: dict[str, Cell] = {}
    for cell in cells:
        chain = [cell]
        while chain[0].needs is not None:
            chain.insert(0, chain[0].needs)
        found |= {each.name: each for each in chain if each.name not in found}
    return list(found.values())


def _grid_labels(scale: Scale, where: str) -> list[str]:
    """The labels of all rows of a scale, including optional ones."""
    return [label for grid in scale.grid for label, _, _ in _rows(grid, where)]


def _rows(grid: Grid, where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Label, variant and settings of every combination in a grid."""
    for variant in grid.variant:
        for values in itertools.product(*(axis.items() for axis in grid.axes.values())):
            settings = dict(grid.settings)
            for _, bundle in values:
                settings |= bundle
            names = dict(zip(grid.axes, (name for name, _ in values), strict=True))
            yield fill(grid.label, {"variant": variant, **names}, f"{where}: label"), variant, settings


def fill(template: str, names: Mapping[str, str], where: str) -> str:
    """A template with each {name} replaced. Only plain names are allowed, because attributes and format specifications could
    have arbitrary effects."""
    try:
        fields = [field for _, *field in string.Formatter().parse(template) if field[0] is not None]
    except ValueError as error:
        raise CoupledQKError(f"{where} {template!r} is malformed ({error}): write names as {{name}}") from None
    for name, spec, conversion in fields:
        if spec or conversion or name not in names:
            known = ", ".join(f"{{{name}}}" for name in names)
            raise CoupledQKError(f"{where} {template!r} contains {name!r}, which is not defined: choose from {known}")
    return template.format(**names)


def _cell(
    scale: Scale, label: str, variant: str, settings: dict[str, Any], seed: int, runs: Path, data_dir: Path | None
) -> Cell:
    if "seed" in (given := scale.settings | settings):
        raise CoupledQKError(
            f"setting seed={given['seed']!r}: expected no seed among the settings; list it in seeds instead"
        )
    needed = None
    if scale.needs is not None:
        source = scale.needs.variant or variant
        start = change(recipe(scale.needs.recipe, source), {**scale.needs.settings, "seed": seed})
        needed = Cell(f"{source} to start from", seed, _placed(start, data_dir))
    start_from = str(runs / needed.name) if needed else None
    config = _configure(
        recipe(scale.recipe, variant), scale.task, {**scale.settings, **settings, "seed": seed}, start_from
    )
    return Cell(label, seed, _placed(config, data_dir), needed)


def _configure(
    base: RunConfig, task: Mapping[str, Any] | None, settings: Mapping[str, Any], init_from: str | None = None
) -> RunConfig:
    data = to_dict(base)
    if task is not None:
        data["task"] = task
    if init_from is not None:
        data["init_from"] = init_from
    return change(from_dict(RunConfig, data), settings)


def _placed(config: RunConfig, data_dir: Path | None) -> RunConfig:
    """The configuration with the local folders of data and pretrained model, which are not part of the experiment."""
    if data_dir is None or not isinstance(config.task, DataConfig | SentenceConfig):
        return config
    place = data_dir.expanduser().resolve()
    if isinstance(config.task, PretrainedConfig):
        copy = place / config.task.source.rpartition("/")[2]
        config = change(config, {"task.model_dir": str(copy)}) if copy.is_dir() else config
    if isinstance(config.task, SentenceConfig) and (place / "glue").is_dir():
        place /= "glue"
    return change(config, {"task.data_dir": str(place)})


def _check(cells: Sequence[Cell], scale: Scale | ListedScale, where: str, rows: Sequence[str]) -> None:
    labels = {cell.label for cell in cells}
    seen: dict[tuple[str, int], str] = {}
    for cell in cells:
        if seen.setdefault((cell.label, cell.seed), cell.name) != cell.name:
            raise CoupledQKError(
                f"{where}: {cell.label!r} is the label of two different runs of seed {cell.seed}: give them different labels"
            )
    wanted = {label for claim in scale.claims for label in (claim.variant, claim.baseline, *(claim.elsewhere or ()))}
    if isinstance(scale, Scale):
        labels |= set(_grid_labels(scale, where))
        wanted |= set(scale.seeds_of)
        wanted |= scale.shifts.rows if scale.shifts else set()
        wanted |= {
            fill(label, {"size": size}, f"{where}: label")
            for spec in scale.ladders
            for label in (spec.variant, spec.baseline)
            for size in spec.sizes
        }
    for label in sorted(wanted | set(scale.published) | set(rows)):
        if label not in labels:
            raise CoupledQKError(f"{where}: there is no row {label!r}: choose from {', '.join(sorted(labels))}")


def _check_measures(cells: Sequence[Cell], scale: Scale | ListedScale, where: str) -> None:
    """Raises if the runs do not measure what the experiment compares."""
    metric = scale.metric
    if metric == TOKENS_TO_REACH and REACHED not in {cell.label for cell in cells}:
        raise CoupledQKError(f"{where}: metric {metric.key!r} needs a row {REACHED!r}, whose final loss is the target")
    measures = {cell.config.task.measure for cell in cells}
    for measure in measures if metric != TOKENS_TO_REACH else ():
        if metric.key not in (known := [each.key for each in (measure, *measure.companions)]):
            raise CoupledQKError(
                f"{where}: metric {metric.key!r} is not measured by this task: choose from {', '.join(known)}"
            )
    properties = scale.shifts.properties if isinstance(scale, Scale) and scale.shifts else ()
    if "steps_to_recall" in properties and any(measure.key != ACCURACY.key for measure in measures):
        raise CoupledQKError(f"{where}: steps_to_recall needs a task that measures {ACCURACY.name}")
