"""From an experiment to its cells: the runs that fill its table. Torch-free."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import DataConfig, GLUEConfig, RunConfig
from ..errors import CoupledQKError
from ..outcome import Status
from ..recipes import recipe
from ..run_folder import RunFolder, default_name
from ..schema import change, from_dict, to_dict
from .experiment import Experiment, Grid, Scale, scale_of


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    label: str
    """The row of the table."""
    seed: int
    config: RunConfig
    needs: "Cell | None" = None
    """The run that this one starts from."""

    @cached_property
    def name(self) -> str:
        """Of its folder: two experiments that have a cell in common share it."""
        return default_name(self.config)


@dataclass(frozen=True)
class Plan:
    """An experiment at a scale, and where its runs are."""

    experiment: Experiment
    scale_name: str
    cells: tuple[Cell, ...]
    out: Path

    @property
    def scale(self) -> Scale:
        return scale_of(self.experiment, self.scale_name)

    @property
    def outcome(self) -> Path:
        return self.out / f"{self.experiment.name}-{self.scale_name}.json"

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(cell.label for cell in self.cells))

    def run(self, cell: Cell) -> RunFolder:
        return RunFolder(self.out / "runs" / cell.name)


ERROR_FILE = "error.json"
"""In the folder of a run that failed: why."""


def status(run: RunFolder) -> Status:
    """Of a cell, by its folder."""
    if not (run.path / "config.toml").is_file():
        return "waiting"
    found = run.status
    return "failed" if found == "interrupted" and (run.path / ERROR_FILE).is_file() else found


def failure(run: RunFolder) -> dict[str, Any]:
    """Why a cell failed; empty if it did not."""
    return json.loads((run.path / ERROR_FILE).read_text()) if status(run) == "failed" else {}


def make_plan(
    experiment: Experiment,
    scale_name: str,
    out: Path = Path("lab"),
    seeds: Sequence[int] = (),
    data_dir: Path | None = None,
) -> Plan:
    """The plan of an experiment; `seeds`, if there are any, take the place of its own."""
    scale = scale_of(experiment, scale_name)
    cells: list[Cell] = []
    for grid in scale.grid:
        for label, variant, settings in _rows(grid):
            for seed in seeds or scale.seeds_of.get(label, scale.seeds):
                try:
                    cells.append(_cell(scale, label, variant, settings, seed, out / "runs", data_dir))
                except CoupledQKError as error:
                    raise CoupledQKError(f"{experiment.name}.toml, {scale_name}, {label}: {error}") from None
    _check(cells, scale, f"{experiment.name}.toml, {scale_name}")
    return Plan(experiment, scale_name, tuple(cells), out)


def base_config(scale: Scale) -> RunConfig:
    """What the cells of a scale have in common, with standard attention; of a task that needs a run, without the task."""
    if scale.needs is not None:
        return recipe(scale.recipe, **{k: v for k, v in scale.settings.items() if k != "init_from"})
    return _configure(recipe(scale.recipe), scale.task, scale.settings)


def with_needed(cells: Sequence[Cell]) -> list[Cell]:
    """The cells and all that they need, each once, what is needed first."""
    found: dict[str, Cell] = {}
    for cell in cells:
        chain = [cell]
        while chain[0].needs is not None:
            chain.insert(0, chain[0].needs)
        found |= {each.name: each for each in chain if each.name not in found}
    return list(found.values())


def _rows(grid: Grid) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Label, variant and settings of every combination."""
    for variant in grid.variant:
        for values in itertools.product(*(axis.items() for axis in grid.axes.values())):
            settings = dict(grid.settings)
            for _, bundle in values:
                settings |= bundle
            names = dict(zip(grid.axes, (name for name, _ in values), strict=True))
            try:
                yield grid.label.format(variant=variant, **names), variant, settings
            except (KeyError, IndexError) as error:
                known = ", ".join(f"{{{name}}}" for name in ("variant", *grid.axes))
                raise CoupledQKError(
                    f"label {grid.label!r} names {error}, which is no axis: there are {known}"
                ) from None


def _cell(
    scale: Scale, label: str, variant: str, settings: dict[str, Any], seed: int, runs: Path, data_dir: Path | None
) -> Cell:
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
    """Where the data lie here is no part of an experiment."""
    if data_dir is None or not isinstance(config.task, DataConfig | GLUEConfig):
        return config
    place = data_dir.expanduser().resolve()
    if isinstance(config.task, GLUEConfig) and (place / "glue").is_dir():
        place /= "glue"
    return change(config, {"task.data_dir": str(place)})


def _check(cells: Sequence[Cell], scale: Scale, where: str) -> None:
    labels = {cell.label for cell in cells}
    seen: dict[tuple[str, int], str] = {}
    for cell in cells:
        if seen.setdefault((cell.label, cell.seed), cell.name) != cell.name:
            raise CoupledQKError(
                f"{where}: {cell.label!r} names two different runs of seed {cell.seed}: tell them apart"
            )
    wanted = {label for claim in scale.claims for label in (claim.variant, claim.baseline, *(claim.elsewhere or ()))}
    for label in sorted(wanted | set(scale.published) | set(scale.seeds_of)):
        if label not in labels:
            raise CoupledQKError(f"{where}: there is no row {label!r}: choose from {', '.join(sorted(labels))}")
