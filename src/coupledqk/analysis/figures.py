"""The paper's figures. Each function takes plain data or run folders and returns a matplotlib Figure for `style.save`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ModelConfig
from ..errors import CoupledQKError
from ..run_folder import RunFolder
from .style import COLOURS, DIVERGING, HATCHES, PAGE_WIDTH, PANEL_HEIGHT, SEQUENTIAL, look, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

Profiles = Mapping[str, Sequence[float]]
"""One value per layer, by the name of the run."""

MOST_POINTS = 150
KEY_WIDTH, LETTER_WIDTH, ROW_HEIGHT = 0.6, 0.075, 0.17  # sizes in the legend, in inches
LONGEST_NAME = 40


def entropy_figure(profiles: Profiles, title: str = "") -> Figure:
    """Attention entropy against the layer, one line per run."""
    depth = _depth(profiles)
    with styled():
        figure = new_figure(width=0.72 * PAGE_WIDTH)
        axes = figure.subplots()
        for place, (name, values) in enumerate(profiles.items()):
            axes.plot(range(depth), values, label=name, **look(place))
        axes.set(xlabel="layer", ylabel="attention entropy (nats)", title=title)
        axes.set_ylim(0, 1.08 * max(map(max, profiles.values())))
        _layer_ticks(axes, depth)
        _legend(figure, axes)
    return figure


def rank_figure(profiles: Profiles, title: str = "") -> Figure:
    """Effective rank of the attention maps by layer, one bar per run, with the mean over layers set apart."""
    depth = _depth(profiles)
    width = 0.8 / len(profiles)
    with styled():
        figure = new_figure(width=PAGE_WIDTH if depth * len(profiles) > 40 else 0.72 * PAGE_WIDTH)
        axes = figure.subplots()
        for place, (name, values) in enumerate(profiles.items()):
            left = width * (place - (len(profiles) - 1) / 2)
            positions = [layer + left for layer in (*range(depth), depth + 0.4)]
            axes.bar(positions, [*values, sum(values) / depth], width, label=name, **_bar(place))
        axes.axvline(depth - 0.3, color="#999999", linewidth=0.7)
        axes.set(xlabel="layer", ylabel="effective rank", title=title)
        axes.set_xticks([*range(depth), depth + 0.4], [*map(str, range(depth)), "mean"])
        axes.grid(visible=False, axis="x")
        axes.margins(x=0.02)
        _legend(figure, axes)
    return figure


def attention_figure(maps: Tensor, layers: Sequence[int], heads: Sequence[int], title: str = "") -> Figure:
    """Heat maps (len(layers), len(heads), T, T), a row per layer and a column per head, on one colour scale.

    The scale is logarithmic, with the weight 1/T of uniform attention in its middle. Signed maps get a diverging scale.
    """
    n_rows, n_columns = maps.shape[:2]
    size = (PAGE_WIDTH - 1.1) / max(n_columns, 3)
    with styled():
        figure = new_figure(1.1 + size * n_columns, 0.6 + size * n_rows)
        figure.set_layout_engine("compressed")
        grid = figure.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True)
        scale = _scale(maps)
        for row, column in itertools.product(range(n_rows), range(n_columns)):
            axes = grid[row, column]
            axes.imshow(_seen(maps[row, column]), **scale)
            axes.set_title(f"layer {layers[row]}, head {heads[column]}", fontsize=8, fontweight="normal")
            axes.grid(visible=False)
            axes.tick_params(labelsize=7)
            axes.set(xlabel="key position", ylabel="query position")
            axes.label_outer()
        bar = figure.colorbar(grid[0, 0].images[0], ax=grid, label="attention weight", aspect=30, format="%g")
        bar.minorticks_off()
        bar.set_ticks(_weight_ticks(maps))
        _heading(figure, title)
    return figure


def convergence_figure(
    runs: Mapping[str, str | Path], from_step: int = 0, max_perplexity: float | None = None, title: str = ""
) -> Figure:
    """Training and validation perplexity against the step, one line per run. The paper's figure shows steps from 5,000 on
    and perplexities up to 200.

    Training losses are averaged over windows of steps before the exponential is taken, so that the lines remain
    distinguishable.
    """
    with styled():
        figure = new_figure(height=PANEL_HEIGHT + 0.2)
        panels = figure.subplots(1, 2)
        for axes, kind in zip(panels, ("train", "valid"), strict=True):
            curves = {name: _perplexities(RunFolder.open(run), kind, from_step) for name, run in runs.items()}
            for place, (name, (steps, values)) in enumerate(curves.items()):
                axes.plot(steps, values, label=name, markevery=max(1, len(steps) // 8), **look(place))
            axes.set(xlabel="step", title={"train": "training", "valid": "validation"}[kind])
            _crop(axes, [value for _, values in curves.values() for value in values], max_perplexity)
        panels[0].set_ylabel("perplexity")
        _legend(figure, panels[0])
        _heading(figure, title)
    return figure


def drawn_maps(
    model: ModelConfig, layers: Sequence[int] = (), heads: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """The layers and heads to draw: the given ones, or the first, middle and last layer and the first four heads.

    At 8 layers these are the paper's 0, 4 and 7.
    """
    for kind, wanted, there in (("layer", layers, model.n_layers), ("head", heads, model.n_heads)):
        if missing := [number for number in wanted if not 0 <= number < there]:
            raise CoupledQKError(f"there is no {kind} {missing[0]}: the model has {kind}s 0 to {there - 1}")
    usual = sorted({0, model.n_layers // 2, model.n_layers - 1})
    return list(layers) or usual, list(heads) or list(range(min(4, model.n_heads)))


def _depth(profiles: Profiles) -> int:
    depths = {len(values) for values in profiles.values()}
    if len(depths) != 1:
        raise CoupledQKError(
            f"profiles of {', '.join(map(str, sorted(depths))) or 'no'} layers: expected runs with the same number of layers"
        )
    return depths.pop()


def _layer_ticks(axes: Axes, depth: int) -> None:
    axes.set_xticks(range(0, depth, 1 if depth <= 16 else 2))
    axes.margins(x=0.04)


def _legend(figure: Figure, axes: Axes) -> None:
    """Puts a legend above the panels in as many columns as fit; a single run is named in the title instead."""
    handles, names = axes.get_legend_handles_labels()
    names = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]
    if len(names) == 1:
        axes.set_title(axes.get_title(loc="left") or names[0])
        return
    fitting = int(figure.get_figwidth() / (KEY_WIDTH + LETTER_WIDTH * max(map(len, names))))
    rows = math.ceil(len(names) / max(1, min(fitting, 4)))
    columns = math.ceil(len(names) / rows)
    figure.set_figheight(figure.get_figheight() + ROW_HEIGHT * (rows - 1))
    by_row = [i for column in range(columns) for i in range(column, len(names), columns)]
    shown = {"ncols": columns, "fontsize": 8, "loc": "outside upper center"}
    figure.legend([handles[i] for i in by_row], [names[i] for i in by_row], **shown)


def _bar(place: int) -> dict[str, Any]:
    colour, hatch = COLOURS[place % len(COLOURS)], HATCHES[place % len(HATCHES)]
    return {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}


def _heading(figure: Figure, title: str) -> None:
    if title:
        figure.suptitle(title, fontsize=9, fontweight="bold", x=0.01, ha="left")


def _seen(one_map: Tensor) -> Any:
    """Masks the future tokens of a causal map, to distinguish them from tokens with a weight of 0."""
    import numpy as np

    values = one_map.float().cpu().numpy()
    future = np.triu(np.ones_like(values, dtype=bool), k=1)
    return np.ma.masked_array(values, future & (not values[future].any()))


def _scale(maps: Tensor) -> dict[str, Any]:
    from matplotlib.colors import LogNorm, SymLogNorm

    uniform = 1 / maps.shape[-1]
    if _signed(maps):
        return {"norm": SymLogNorm(linthresh=uniform, linscale=0.5, vmin=-1, vmax=1), "cmap": DIVERGING}
    return {"norm": LogNorm(vmin=uniform**2, vmax=1, clip=True), "cmap": SEQUENTIAL}


def _weight_ticks(maps: Tensor) -> list[float]:
    """Powers of ten down to the smallest weight of the colour scale."""
    smallest = 1 / maps.shape[-1] ** (1 if _signed(maps) else 2)
    powers = [10.0**-n for n in range(math.floor(-math.log10(smallest)) + 1)]
    return [*(-power for power in powers), 0.0, *powers] if _signed(maps) else powers


def _signed(maps: Tensor) -> bool:
    return bool((maps < 0).any())


def _perplexities(run: RunFolder, kind: Any, from_step: int) -> tuple[list[int], list[float]]:
    records = [record for record in run.metrics(kind) if record["step"] >= from_step]
    if not records:
        raise CoupledQKError(f"{run.path} has no {kind} record from step {from_step} on: choose an earlier step")
    window = -(-len(records) // MOST_POINTS) if kind == "train" else 1
    parts = [records[start : start + window] for start in range(0, len(records), window)]
    losses = [sum(record["loss"] for record in part) / len(part) for part in parts]
    return [part[len(part) // 2]["step"] for part in parts], [math.exp(min(loss, 700)) for loss in losses]


def _crop(axes: Axes, values: Sequence[float], top: float | None) -> None:
    if top is None:
        return
    if min(values) >= top:
        raise CoupledQKError(
            f"every perplexity is above {top:g}: raise max_perplexity; the smallest is {min(values):.4g}"
        )
    axes.set_ylim(top=min(top, 1.02 * max(values)))
