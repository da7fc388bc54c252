"""coupledqk mqar"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..schema import parse_seeds
from .output import report_experiment
from .queue import WithQueue


@dataclass(frozen=True)
class Mqar(WithQueue):
    """Compare attention variants on multi-query associative recall (MQAR): recalling the value that followed a key.

    Every variant is trained with the same numbers of steps and learning rates and, for each seed, with the same data and the
    same initial values of shared weights. If interrupted, the same command resumes from the last checkpoints.

    Try it:

        coupledqk mqar --seeds 0
        coupledqk mqar --variants standard euler hamiltonian --pairs 4 --steps 4000
        coupledqk mqar --scale paper --level medium --device cuda
    """

    variants: tuple[str, ...] = ("standard", "hamiltonian")
    """The attention variants to compare, the baseline first."""
    scale: Literal["mini", "paper"] = "mini"
    """Size of the models and the task. mini: 2 layers of width 64, and 3 pairs in 16 tokens from a vocabulary of 32. paper: 6
    layers of width 256, and 4 pairs in 64 tokens from a vocabulary of 64."""
    level: Literal["easy", "medium", "hard"] | None = None
    """The paper's level of difficulty: 4 pairs in 64 tokens (easy), 8 in 128 (medium) or 16 in 256 (hard)."""
    pairs: int | None = None
    """Number of pairs in a row, instead of --level."""
    length: int | None = None
    """Number of tokens in a row, instead of --level."""
    steps: tuple[int, ...] = ()
    """Numbers of training steps, with a run for each; 10000 and 20000 by default with --scale paper."""
    lrs: tuple[float, ...] = ()
    """Peak learning rates to try. The default is 5e-4 and 1e-3 for mini, and 3e-4 (the paper's), 1e-3 and 3e-3 for paper."""
    seeds: tuple[str, ...] = ("0-2",)
    """Seeds to train with, such as 0 1 2 or 0-7."""
    device: str = "auto"
    """The device to train on."""
    out: Path = Path("lab")
    """Folder for the runs, the outcome and the report."""
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
