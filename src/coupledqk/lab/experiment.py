"""Experiments as data: one TOML file for each table or figure. Torch-free.

    title = "Integration steps"
    source = "Table 2 of the paper"
    metric = "perplexity"
    caption = "..."

    [mini]                          # a scale; its keys override those at the top level of the file
    recipe = "mini"
    seeds = [0, 1, 2]

    [[grid]]                        # every combination of variants and axes; each is a row of the table
    label = "hamiltonian n={n_steps}"
    variant = ["hamiltonian"]
    axes.n_steps = [1, 3]           # an axis: values of a setting, or names of bundles of settings

    [published]                     # the paper's numbers, by label
    "hamiltonian n=1" = { mean = 22.58, std = 0.05, n = 3 }

    [[claims]]                      # lab/verdicts.py, one of them primary

An experiment that measures existing runs instead of training has a `command` for each scale. In the command, {label} is the run
folder of a cell of the experiment `of`, and {out} a folder for the results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from ..config import RunConfig
from ..errors import CoupledQKError, unknown
from ..files import FileError, read_text
from ..measure import MEASURES, Measure
from ..outcome import Claim, LadderSpec, Published
from ..run_folder import default_name
from ..schema import decode, from_dict, parse_toml, require
from .verdicts import check_primary

FOLDER = files("coupledqk.lab") / "experiments"


@dataclass(frozen=True)
class Grid:
    """All combinations of its variants and the values of its axes."""

    variant: tuple[str, ...]
    label: str = "{variant}"
    """Template of a row's label, in which {variant} and the names of axes are replaced by their values."""
    axes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """The values of each axis, by the name of the axis. A value has a name and the settings it represents."""
    settings: dict[str, Any] = field(default_factory=dict)
    optional: bool = False
    """Whether the rows are trained only if they are named when seeds are added (`reproduce --rows`)."""

    def __post_init__(self) -> None:
        require(len(self.variant) > 0, "variant", list(self.variant), "at least one name")


@dataclass(frozen=True)
class Needs:
    """The run that a cell starts from. It has the seed of the cell, and the same variant unless another one is given."""

    recipe: str
    variant: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


RATES = ("lr halved", "lr doubled")
"""Endings of the labels of the rows that `lr_sensitivity` uses."""
Property = Literal["loss", "context_gain", "lr_sensitivity", "steps_to_recall", "entropy", "effective_rank"]
"""Properties of a trained model that `lab.shifts` measures."""


@dataclass(frozen=True)
class ShiftsSpec:
    """Rows whose trained models are compared in properties other than the metric."""

    variant: str
    """Label of the variant's row; `baseline` and `null` are labels of rows, too."""
    baseline: str
    null: str
    """Label of the baseline with an immaterial change. Differences between the two are noise."""
    properties: tuple[Property, ...]

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.variant, self.baseline, self.null

    @property
    def rows(self) -> set[str]:
        """Labels of all rows that the properties are measured on."""
        rates = RATES if "lr_sensitivity" in self.properties else ()
        return {*self.labels, *(f"{label}, {rate}" for label in self.labels for rate in rates)}


@dataclass(frozen=True)
class Scale:
    """An experiment at one size."""

    metric: Measure
    grid: tuple[Grid, ...]
    recipe: str
    seeds: tuple[int, ...]
    seeds_of: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Seeds of the rows that do not use `seeds`, by label."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that override those of the recipe in all cells."""
    task: dict[str, Any] | None = None
    """The task, if it is not the recipe's."""
    needs: Needs | None = None
    published: dict[str, Published] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    ladders: tuple[LadderSpec, ...] = ()
    shifts: ShiftsSpec | None = None

    def __post_init__(self) -> None:
        for name, seeds in {"seeds": self.seeds, **self.seeds_of}.items():
            require(0 < len(seeds) == len(set(seeds)), name, list(seeds), "a list of distinct numbers")
        ladders = [ladder.name for ladder in self.ladders]
        require(len(ladders) == len(set(ladders)), "ladders.name", ladders, "a different name for each ladder")
        for ladder in self.ladders:
            labels = [ladder.variant, ladder.baseline]
            require(all("{size}" in label for label in labels), "ladders", labels, "labels that contain {size}")
        check_primary(self.claims)


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    label: str
    """Label of the row of the table that the run belongs to."""
    seed: int
    config: RunConfig
    needs: "Cell | None" = None
    """The run that this one starts from."""

    @cached_property
    def name(self) -> str:
        """The name of the run folder. Experiments that have a cell in common share its folder."""
        return default_name(self.config)


@dataclass(frozen=True)
class ListedScale:
    """An experiment at one size whose runs are listed one by one. Such experiments are built in Python, not read from TOML."""

    metric: Measure
    cells: tuple[Cell, ...]
    published: dict[str, Published] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    source: str
    """The paper's table or figure, or "beyond the paper"."""
    caption: str
    scales: Mapping[str, Scale | ListedScale] = field(default_factory=dict)
    """Settings by scale; empty for an experiment that trains nothing."""
    commands: dict[str, str] = field(default_factory=dict)
    """Command line by scale, for an experiment that trains nothing but measures existing runs."""
    of: str | None = None
    """Name of the experiment whose runs the commands measure."""
    published: dict[str, Published] = field(default_factory=dict)
    """The paper's numbers, for an experiment that trains nothing."""
    file: str = ""
    """Path of the user's TOML file that the experiment was read from, as given; empty for other experiments."""
    command: str = ""
    """The command line that runs the experiment, if it is not `coupledqk reproduce`."""


SCALES = ("mini", "paper")


def names() -> list[str]:
    """Names of the experiments in the package."""
    return sorted(path.name.removesuffix(".toml") for path in FOLDER.iterdir() if path.name.endswith(".toml"))


def load(name: str) -> Experiment:
    """Loads an experiment of the package by name, or one from a TOML file."""
    if name.endswith(".toml"):
        return load_file(Path(name))
    if name not in names():
        raise unknown("experiment", name, names())
    return parse(name, (FOLDER / f"{name}.toml").read_text("utf-8"))


def load_file(path: Path) -> Experiment:
    """Loads an experiment from a user's TOML file."""
    try:
        text = read_text(path.expanduser())
    except FileError as error:
        raise CoupledQKError(f"{error}; expected a TOML file with an experiment") from None
    return parse(path.stem, text, str(path))


def parse(name: str, text: str, file: str = "") -> Experiment:
    """Parses an experiment. An unknown key or an invalid value raises an error that names the file and the location."""
    try:
        return replace(_experiment(name, parse_toml(text)), file=file)
    except CoupledQKError as error:
        raise CoupledQKError(f"{file or f'{name}.toml'}: {error}") from None


def scale_of(experiment: Experiment, scale: str) -> Scale | ListedScale:
    if scale not in experiment.scales:
        raise CoupledQKError(
            f"{experiment.name} has no scale {scale!r}: "
            + (f"choose from {', '.join(experiment.scales)}" if experiment.scales else "it trains nothing")
        )
    return experiment.scales[scale]


def _experiment(name: str, data: dict[str, Any]) -> Experiment:
    about = {key: data.pop(key) for key in ("title", "source", "caption", "of") if key in data}
    experiment = from_dict(Experiment, {"name": name, **about})
    tables = {scale: decode(dict[str, Any], data.pop(scale), scale) for scale in SCALES if scale in data}
    if not tables:
        raise CoupledQKError(f"expected at least one of the scales {', '.join(f'[{scale}]' for scale in SCALES)}")
    if not any("command" in table for table in tables.values()):
        return replace(experiment, scales={scale: _scale({**data, **table}, scale) for scale, table in tables.items()})
    for scale, table in tables.items():
        if table.keys() != {"command"}:
            raise CoupledQKError(f"[{scale}]: expected a command and nothing else, given {', '.join(table)}")
    published = decode(dict[str, Published], data.pop("published", {}), "published")
    if data:
        raise unknown("key", min(data), ("of", "published"))
    commands = {scale: decode(str, table["command"], f"{scale}.command") for scale, table in tables.items()}
    return replace(experiment, commands=commands, published=published)


def _scale(data: dict[str, Any], name: str) -> Scale:
    try:
        if "metric" in data:
            data["metric"] = _metric(data["metric"])
        if isinstance(data.get("grid"), list):
            data["grid"] = [_with_named_values(grid) for grid in data["grid"]]
        return from_dict(Scale, data)
    except CoupledQKError as error:
        raise CoupledQKError(f"[{name}] {error}") from None


def _metric(name: Any) -> Measure:
    if not isinstance(name, str) or name not in MEASURES:
        raise unknown("metric", name, MEASURES)
    return MEASURES[name]


def _with_named_values(grid: Any) -> Any:
    """The grid with names for the values of all axes. Malformed values are left unchanged, and the decoder reports them."""
    if not isinstance(grid, dict) or not isinstance(axes := grid.get("axes"), dict):
        return grid
    named = {
        axis: {str(value): {axis: value} for value in values} if isinstance(values, list) else values
        for axis, values in axes.items()
    }
    return {**grid, "axes": named}
