"""coupledqk mqar"""

import itertools
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..config import RunConfig
from ..errors import CoupledQKError, DivergedError
from ..recipes import RECIPES, recipe
from ..run_folder import RunFolder, default_name, variant_name
from .output import mean_and_std, table
from .train import train_one

DEFAULTS = {"mini": ((1_500,), (5e-4, 1e-3)), "paper": ((10_000, 20_000), (3e-4, 1e-3, 3e-3))}
"""Steps and learning rates of a scale."""


@dataclass(frozen=True)
class Mqar:
    """Compare attentions at associative recall: which value followed this key?

    Every attention gets the same steps, the same learning rates and, seed by seed, the same rows and initial weights.
    Interrupted, it goes on where it was.

    Try it:

        coupledqk mqar --seeds 0
        coupledqk mqar --variants standard euler hamiltonian --pairs 4 --steps 4000
        coupledqk mqar --scale paper --level medium --device cuda
    """

    variants: tuple[str, ...] = ("standard", "hamiltonian")
    """The attentions to compare."""
    scale: Literal["mini", "paper"] = "mini"
    """mini: 2 layers of width 64, 3 pairs in 16 of 32 tokens. paper: 6 layers of width 256, 4 pairs in 64 of 64 tokens."""
    level: Literal["easy", "medium", "hard"] | None = None
    """The paper's: 4 pairs in 64 tokens, 8 in 128 or 16 in 256."""
    pairs: int | None = None
    """Or any number of pairs ..."""
    length: int | None = None
    """... and of tokens."""
    steps: tuple[int, ...] = ()
    """Training steps, a run for each; at the paper's scale 10000 and 20000 unless given."""
    lrs: tuple[float, ...] = ()
    """The peak learning rates to try; 3e-4 (the paper's), 1e-3 and 3e-3 unless given, for mini 5e-4 and 1e-3."""
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "auto"
    out: Path = Path("runs")
    """The folder of the runs."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        steps, lrs = DEFAULTS[self.scale]
        grid = list(itertools.product(self.steps or steps, self.variants, sorted(set(self.lrs or lrs))))
        # all of them first: a mistake shows before any training
        configs = {cell: [self._config(*cell, seed) for seed in self.seeds] for cell in grid}
        rows = [Row(*cell, [self._train(config) for config in configs[cell]]) for cell in grid]
        finished = [run for row in rows for run in row.runs if run is not None]
        if not finished:
            raise CoupledQKError("every run diverged: try smaller --lrs")
        definition = finished[0].result["definition"]
        if self.json:
            print(json.dumps({"definition": definition, "rows": [self._plain(row) for row in rows]}, indent=2))
        else:
            print(f"{summary(rows)}\n\nAccuracy: {definition}, after the last step.")

    def _config(self, steps: int, variant: str, lr: float, seed: int) -> RunConfig:
        from ..data.mqar import LEVELS

        if self.level is not None and (self.pairs is not None or self.length is not None):
            raise CoupledQKError(f"--level {self.level} sets pairs and length: leave out --pairs and --length")
        name = "mqar" if self.scale == "paper" else "mqar-mini"
        base = RECIPES[name]
        pairs, length = LEVELS[self.level] if self.level else (self.pairs, self.length)
        length = length or base.train.seq_len
        settings = {} if pairs is None else {"n_pairs": pairs}
        if self.level:
            settings["vocab_size"] = RECIPES["mqar"].model.vocab_size
        return recipe(
            name,
            variant,
            seq_len=length,
            n_positions=max(length, base.model.n_positions),
            steps=steps,
            warmup=min(steps, base.train.warmup),
            lr=lr,
            seed=seed,
            device=self.device,
            **settings,
        )

    def _train(self, config: RunConfig) -> RunFolder | None:
        label = f"{variant_name(config)}, seed {config.seed}, lr {config.train.lr:g}"
        try:
            return train_one(config, self.out / default_name(config), label=label)
        except DivergedError as error:
            print(f"{label}: {error}", file=sys.stderr)
            return None

    def _plain(self, row: "Row") -> dict[str, Any]:
        seeds = {seed: run and accuracy(run) for seed, run in zip(self.seeds, row.runs, strict=True)}
        return {"attention": row.attention, "steps": row.steps, "lr": row.lr, "accuracy": seeds}


class Row(NamedTuple):
    steps: int
    attention: str
    lr: float
    runs: list[RunFolder | None]
    """One per seed; None if it diverged."""

    @property
    def mean(self) -> float:
        """A run that diverged answers nothing."""
        return statistics.fmean(accuracy(run) if run else 0.0 for run in self.runs)


def accuracy(run: RunFolder) -> float:
    return run.result["final"]["accuracy"]


def summary(rows: list[Row]) -> str:
    """A line per learning rate; the best one of each attention is marked."""
    lines = []
    for row in rows:
        rivals = [other.mean for other in rows if (other.attention, other.steps) == (row.attention, row.steps)]
        reached = [accuracy(run) for run in row.runs if run]
        diverged = f"{row.runs.count(None)} diverged" if None in row.runs else ""
        lines.append(
            [
                row.attention,
                f"{row.steps:,}",
                f"{row.lr:g}",
                mean_and_std(reached) if reached else "",
                " ".join(f"{value:.3f}" for value in sorted(reached)),
                diverged or ("best" if len(rivals) > 1 and row.mean == max(rivals) else ""),
            ]
        )
    return table(["attention", "steps", "learning rate", "accuracy", "of each seed", ""], lines)
