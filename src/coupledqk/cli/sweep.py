"""coupledqk sweep"""

from dataclasses import dataclass
from pathlib import Path

from ..config import identity
from ..run_folder import variant_name
from ..schema import parse_seeds
from .output import report_experiment
from .queue import WithQueue
from .settings import WithSettings


@dataclass(frozen=True)
class Sweep(WithSettings, WithQueue):
    """Find a learning rate: a few short runs, a table and a plot. If interrupted, the same command resumes.

    Try it:

        coupledqk sweep --variant euler --steps 100
        coupledqk sweep --variant standard --lrs 3e-4 1e-3 3e-3 --corpus my-texts/

    All other settings are flags, as for `coupledqk train`.
    """

    lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    """Peak learning rates to try."""
    seeds: tuple[str, ...] = ()
    """Seeds for each learning rate, such as 0 1 2 or 0-7; a single seed by default."""
    out: Path | None = None
    """Folder for the runs, the outcome and the plot; runs/sweep-NAME by default."""
    json: bool = False
    """Print the outcome as JSON instead of a table."""

    def run(self, flags: list[str]) -> None:
        from ..lab.sweep import at_edge, best_row, draw_sweep, sweep_experiment

        base = self.run_config(flags)
        out = self.out or Path("runs") / f"sweep-{variant_name(base)}-{identity(base)}"
        experiment = sweep_experiment(base, self.lrs, parse_seeds(self.seeds))
        outcome = report_experiment(experiment, out, self.jobs, self.machines(), self.json)
        best = best_row(outcome)
        draw_sweep(outcome, out / "sweep.svg")
        if not self.json:
            print(f"best learning rate: {best.label}\n{out / 'sweep.svg'}")
            if at_edge(outcome):
                print("The best learning rate is at the edge of the range that was tried: extend --lrs.")
