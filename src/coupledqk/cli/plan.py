"""coupledqk plan"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import CoupledQKError
from ..schema import parse_flags
from .settings import WithSettings


@dataclass(frozen=True)
class Plan(WithSettings):
    """Estimate what a run or an experiment needs on GPUs: memory by part, micro-batch, time and GPU-hours.

    It also prints the command that starts the run with the fastest strategy that fits.

    Nothing is trained, and no GPU is needed. Every setting of a run is a flag, as for `coupledqk train`. To plan an
    experiment of `coupledqk reproduce`, give its name as the first argument. docs/scaling.md describes what is counted and
    what is not.

    Try it:

        coupledqk plan --recipe wikitext-103-large --variant hamiltonian --gpus 8 --gpu "RTX 2080 Ti"
        coupledqk plan --recipe wikitext-103 --seq-len 2048 --gpu "A100 40GB" --utilisation 0.4
        coupledqk plan --recipe wikitext-103-medium --flops 9e13 --memory 16
        coupledqk plan large --scale paper --gpus 4 --gpu "RTX 3090"
        coupledqk plan --recipe wikitext-103 --figure growth.svg
    """

    gpu: str = "RTX 2080 Ti"
    """Name of the GPU; the default is the paper's. The error for an unknown name lists the known ones."""
    gpus: int = 1
    """Number of GPUs that train one run together."""
    flops: float | None = None
    """Peak FLOP/s of a GPU that is not in the table, such as 9e13; requires --memory."""
    memory: float | None = None
    """Memory in GiB of a GPU that is not in the table; requires --flops."""
    utilisation: float | None = None
    """Fraction of the peak FLOP/s that training reaches. The default is derived from the paper's throughput table."""
    scale: Literal["mini", "paper"] = "paper"
    """Scale of the experiment: mini, or paper for the paper's exact recipes."""
    figure: Path | None = None
    """SVG file to write, with a figure of time and memory against context, width, depth and number of devices."""

    def run(self, words: list[str]) -> None:
        from ..planning.estimate import Machine, paper_utilisation
        from ..planning.gpus import find_gpu
        from ..planning.plans import PLANNED, plan_experiment, plan_run

        utilisation = paper_utilisation() if self.utilisation is None else self.utilisation
        machine = Machine(find_gpu(self.gpu, self.flops, self.memory), self.gpus, utilisation)
        if words and not words[0].startswith("--"):
            name, *others = words
            if others or self.figure:
                raise CoupledQKError(
                    f"plan {name} takes no settings and no figure: {' '.join(others) or '--figure'} is for a single run"
                )
            print(plan_experiment(name, self.scale, machine))
            return
        for setting in parse_flags(self._base(), words):
            if setting.rpartition(".")[2] in PLANNED:
                raise CoupledQKError(f"--{setting.replace('_', '-')} is determined by the plan: leave it out")
        name = str(self.config) if self.config else f"{self.recipe}, {self.variant}"
        source = ["--config", str(self.config)] if self.config else ["--recipe", self.recipe, "--variant", self.variant]
        print(plan_run(self.run_config(words), name, [*source, *words], machine, self.figure))
