"""The figures of an analysis, as files. Torch-free until something is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..run_folder import RunFolder
from .style import save, styled
from .tables import labels

if TYPE_CHECKING:
    from .runs import Analyzed


@dataclass(frozen=True)
class Drawing:
    """Selects the parts of an analysis to draw."""

    layers: tuple[int, ...] = ()
    """Layers whose attention maps are drawn, counted from 0; by default the first, the middle and the last."""
    heads: tuple[int, ...] = ()
    """Heads whose attention maps are drawn, counted from 0; by default the first four."""
    from_step: int = 0
    """First step of the convergence figure; 5,000 in the paper."""
    max_perplexity: float | None = None
    """Highest perplexity of the convergence figure; 200 in the paper."""

    def check_drawable(self, runs: Iterable[RunFolder]) -> None:
        """Raises an error unless matplotlib is installed and every run has the layers and heads to draw."""
        from .figures import drawn_maps

        with styled():
            for run in runs:
                drawn_maps(run.config.model, self.layers, self.heads)

    def save_figures(self, analyzed: Analyzed, folder: Path) -> list[str]:
        """Writes every figure as SVG, PDF and PNG, and returns their names."""
        from . import figures

        names = labels([(one.name, one.step) for one in analyzed.surveyed])
        named = dict(zip(names, analyzed.surveyed, strict=True))
        paths = {name: one.run.path for name, one in analyzed.newest.items()}
        drawn = {
            "entropy": figures.entropy_figure({name: one.longest.by_layer("entropy") for name, one in named.items()}),
            "rank": figures.rank_figure({name: one.longest.by_layer("effective_rank") for name, one in named.items()}),
            "convergence": figures.convergence_figure(paths, self.from_step, self.max_perplexity),
        }
        for name, one in analyzed.newest.items():
            layers, heads = figures.drawn_maps(one.run.config.model, self.layers, self.heads)
            maps = analyzed.maps(name, layers, heads)
            drawn[f"attention-{name.replace('/', '-')}"] = figures.attention_figure(maps, layers, heads, name)
        for name, figure in drawn.items():
            save(figure, folder / name)
        return list(drawn)
