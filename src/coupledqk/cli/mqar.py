"""coupledqk mqar"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..schema import parse_seeds
from .output import report_experiment
from .queue import WithQueue


@dataclass(frozen=True)
class Mqar(WithQueue):
    """Compare attention variants at associative recall: which value followed this key?

    Every variant gets the same steps, the same learning rates and, seed by seed, the same data and initial weights.
    Interrupted, it resumes from the last checkpoints.

    Try it:

        coupledqk mqar --seeds 0
        coupledqk mqar --variants standard euler hamiltonian --pairs 4 --steps 4000
        coupledqk mqar --scale paper --level medium --device cuda
    """

    variants: tuple[str, ...] = ("standard", "hamiltonian")
    """The attention variants to compare, the baseline first."""
    scale: Literal["mini", "paper"] = "mini"
    """mini: 2 layers of width 64, 3 pairs in 16 of 32 tokens. paper: 6 layers of width 256, 4 pairs in 64 of 64 tokens."""
    level: Literal["easy", "medium", "hard"] | None = None
    """The paper's: 4 pairs in 64 tokens, 8 in 128 or 16 in 256."""
    pairs: int | None = None
    """Number of pairs, if it is none of the paper's levels."""
    length: int | None = None
    """Number of tokens, if it is none of the paper's levels."""
    steps: tuple[int, ...] = ()
    """Training steps, a run for each; at the paper's scale 10000 and 20000 unless given."""
    lrs: tuple[float, ...] = ()
    """The peak learning rates to try; 3e-4 (the paper's), 1e-3 and 3e-3 unless given, for mini 5e-4 and 1e-3."""
    seeds: tuple[str, ...] = ("0-2",)
    """Seeds, such as 0 1 2 or 0-7."""
    device: str = "auto"
    """The device to train on."""
    out: Path = Path("lab")
    """The folder of the runs, the outcome and the report."""
    json: bool = False
    """Print the outcome as JSON instead of a table."""

    def run(self) -> None:
        from ..lab.mqar import recall_experiment

        experiment = recall_experiment(
            self.variants,
            self.scale,
            self.level,
            self.pairs,
            self.length,
            self.steps,
            self.lrs,
            parse_seeds(self.seeds),
            device=self.device,
        )
        report_experiment(experiment, self.out, self.jobs, self.machines(), self.json)
