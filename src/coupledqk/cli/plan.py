"""coupledqk plan"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import CoupledQKError
from ..files import write_atomic
from ..schema import leaves, parse_flags
from .settings import WithSettings

if TYPE_CHECKING:
    from ..planning.estimate import Machine, Option

NO_COMMAND = "(this version trains a run on one GPU: there is no command for several yet)"
PLANNED = ("micro_batch", "gradient_checkpointing", "device")


@dataclass(frozen=True)
class Plan(WithSettings):
    """Estimate what a run or an experiment needs on GPUs: memory by part, micro-batch, time, GPU-hours, the command.

    Nothing is trained and no GPU is needed. Every setting of a run is a flag, as for `coupledqk train`; an experiment of
    `coupledqk reproduce` is named first. docs/scaling.md says what is counted and what is not.

    Try it:

        coupledqk plan --recipe wikitext-103-large --variant hamiltonian --gpus 8 --gpu "RTX 2080 Ti"
        coupledqk plan --recipe wikitext-103 --seq-len 2048 --gpu "A100 40GB" --utilisation 0.4
        coupledqk plan --recipe wikitext-103-medium --flops 9e13 --memory 16
        coupledqk plan large --scale paper --gpus 4 --gpu "RTX 3090"
        coupledqk plan --recipe wikitext-103 --figure growth.svg
    """

    gpu: str = "RTX 2080 Ti"
    """A GPU by name; the paper's unless given. An unknown name lists those that are known."""
    gpus: int = 1
    """Number of GPUs that train one run together."""
    flops: float | None = None
    """Peak FLOP/s of a GPU that is not in the table, such as 9e13; give --memory too."""
    memory: float | None = None
    """Memory in GiB of a GPU that is not in the table; give --flops too."""
    utilisation: float | None = None
    """Share of the peak FLOP/s that is reached; what the paper's throughput amounts to unless given."""
    scale: Literal["mini", "paper"] = "paper"
    """The scale of an experiment: mini or paper (its exact recipes)."""
    figure: Path | None = None
    """Draw how time and memory of the run grow with context, width, depth and devices, to this SVG file."""

    def run(self, words: list[str]) -> None:
        from ..planning.estimate import Machine, paper_utilisation
        from ..planning.gpus import find_gpu

        utilisation = paper_utilisation() if self.utilisation is None else self.utilisation
        machine = Machine(find_gpu(self.gpu, self.flops, self.memory), self.gpus, utilisation)
        if words and not words[0].startswith("--"):
            self.plan_experiment(words, machine)
        else:
            self.plan_run(words, machine)

    def plan_experiment(self, words: list[str], machine: "Machine") -> None:
        from ..lab.cells import make_plan
        from ..lab.experiment import load
        from ..planning.estimate import experiment_rows
        from ..planning.summary import experiment_summary

        name, *others = words
        if others or self.figure:
            raise CoupledQKError(
                f"plan {name} takes one experiment and no settings or figure: {' '.join(others) or '--figure'} is for a run"
            )
        experiment = load(name)
        rows = list(experiment_rows(make_plan(experiment, self.scale), machine))
        command = f"coupledqk reproduce {shlex.quote(name)} --scale {self.scale}"
        print(experiment_summary(f"{experiment.title}, {self.scale}", rows, machine, command))

    def plan_run(self, flags: list[str], machine: "Machine") -> None:
        from ..planning.estimate import estimate, require_fit
        from ..planning.summary import run_summary

        for name in parse_flags(self._base(), flags):
            if name.rpartition(".")[2] in PLANNED:
                raise CoupledQKError(f"--{name.replace('_', '-')} is chosen by the plan: leave it out")
        config = self.run_config(flags)
        name = str(self.config) if self.config else f"{self.recipe}, {self.variant}"
        found = estimate(config, machine)
        best = require_fit(found, name)
        several = machine.devices > 1 and "runtime.parallel" not in leaves(config)
        command = NO_COMMAND if several else self.command(flags, machine, best)
        print(run_summary(found, name, command))
        if self.figure is not None:
            from ..planning.figure import growth_figure

            write_atomic(self.figure, growth_figure(config, machine, best.micro_batch))
            print(f"\n{self.figure}")

    def command(self, flags: list[str], machine: "Machine", best: "Option") -> str:
        """The command line that trains the run in the best way."""
        source = ["--config", str(self.config)] if self.config else ["--recipe", self.recipe, "--variant", self.variant]
        start, end = ["coupledqk"], ["--device", "cuda"]
        if machine.devices > 1:
            start = ["torchrun", "--nproc-per-node", str(machine.devices), "-m", "coupledqk"]
            end = ["--parallel", best.strategy]
        planned = ["--micro-batch", str(best.micro_batch)]
        planned += ["--gradient-checkpointing", str(best.checkpointing).lower()]
        return shlex.join([*start, "train", *source, *flags, *planned, *end])
