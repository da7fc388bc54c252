"""coupledqk reproduce"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import CoupledQKError
from ..schema import parse_seeds
from ..terminal import wrapped
from .output import train_and_print
from .queue import WithQueue

if TYPE_CHECKING:
    from ..lab.experiment import Experiment


@dataclass(frozen=True)
class Reproduce(WithQueue):
    """Run the paper's experiments, or your own: tables and figures with statistics. It can be stopped at any time.

    Finished runs are skipped, interrupted runs are resumed, and experiments share the runs that they have in common. Your own
    experiment is a TOML file like those of the package (docs/laboratory.md).

    Try it:

        coupledqk reproduce --list
        coupledqk reproduce smoke
        coupledqk reproduce ablation --jobs 2 --compile
        coupledqk reproduce ablation --seeds 0-7 --rows hamiltonian standard
        coupledqk reproduce controls --reuse results/lab
        coupledqk reproduce ./my-experiment.toml
        coupledqk reproduce ablation --scale paper --dry-run
        coupledqk reproduce all --status
    """

    names: tuple[str, ...]
    """Names of experiments, TOML files, or all: every experiment of the package at the given --scale, except smoke."""
    scale: Literal["mini", "paper"] = "mini"
    """Scale of the experiment: mini (minutes per run on one core) or paper (the paper's exact recipes, for GPUs)."""
    seeds: tuple[str, ...] = ()
    """Seeds to use instead of those of the experiment, such as 0 1 2 or 0-7."""
    rows: tuple[str, ...] = ()
    """Labels of rows to which the --seeds are added; the other rows of the grid keep their seeds."""
    data_dir: Path | None = None
    """Folder with local copies of the corpora."""
    compile: bool = False
    """Compile the models with torch.compile, which needs a C++ compiler. After compilation, small models train about 1.2 times
    as fast on a CPU (docs/performance.md). Results differ from those of uncompiled models by rounding."""
    reuse: tuple[Path, ...] = ()
    """Outcome files, or folders of them such as results/lab, whose results are taken over instead of training their runs."""
    out: Path = Path("lab")
    """Folder for the runs (OUT/runs/) and the outcome of each experiment (OUT/NAME-SCALE.json)."""
    list: bool = False
    """List the experiments and exit."""
    dry_run: bool = False
    """Print the runs that would be trained and their cost, and exit."""
    status: bool = False
    """Print which runs are finished, and exit."""

    def run(self) -> None:
        from ..lab.cells import make_plan
        from ..lab.experiment import load, names
        from ..lab.reuse import with_reused
        from ..lab.summary import cost_summary, listing, progress_summary

        if self.list:
            print(wrapped(listing([load(name) for name in names()])))
            return
        if not self.names:
            raise CoupledQKError(
                "no experiment given: name one or more, or all; `coupledqk reproduce --list` lists them"
            )
        chosen = self.chosen()
        measuring = [each for each in chosen if each.commands]
        plans = [
            make_plan(each, self.scale, self.out, parse_seeds(self.seeds), self.data_dir, self.rows, self.compile)
            for each in chosen
            if not each.commands
        ]
        plans = with_reused(plans, self.reuse)
        if self.dry_run or self.status:
            for plan in plans:
                print(wrapped(cost_summary(plan) if self.dry_run else progress_summary(plan)), end="\n\n")
        elif plans:
            train_and_print(plans, self.jobs, self.machines())
        for each in measuring:
            self.measure(each)

    def chosen(self) -> "Sequence[Experiment]":
        """The selected experiments, without duplicates."""
        from ..lab.experiment import load, names

        named = [load(name) for name in self.names if name != "all"]
        if "all" in self.names:
            everything = [load(name) for name in names() if name != "smoke"]
            named += [each for each in everything if self.scale in (each.scales or each.commands)]
        found: dict[str, Experiment] = {}
        for each in named:
            if found.setdefault(each.name, each) != each:
                raise CoupledQKError(
                    f"two experiments are named {each.name}, so their outcomes would be the same file: rename one of them"
                )
        return list(found.values())

    def measure(self, experiment: "Experiment") -> None:
        """Runs or prints the command lines of an experiment that trains nothing."""
        from ..lab.measuring import measurements, require_finished
        from ..lab.summary import measurement_summary, published_summary
        from . import run

        found = measurements(experiment, self.scale, self.out, parse_seeds(self.seeds))
        print(wrapped(measurement_summary(experiment, found)), end="\n\n", flush=True)
        if self.dry_run or self.status:
            return
        require_finished(experiment, self.scale, self.out, found)
        for each in found:
            run([*each.words])
        print(f"\n{published_summary(experiment)}")
