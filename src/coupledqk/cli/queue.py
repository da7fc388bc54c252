"""--jobs, --engine and its options, for every command that trains on the laboratory's queue."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .plugin import WithPlugin

if TYPE_CHECKING:
    from ..lab.machines import Machines


@dataclass(frozen=True, kw_only=True)
class WithQueue(WithPlugin):
    """A command that trains many runs."""

    jobs: int | None = None
    """Number of runs at a time; unless given, cores divided by threads of a run, with ray what fits, with slurm 16."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """Where runs are trained: on this machine, or on a Ray or Slurm cluster that shares its disk (docs/scaling.md)."""
    address: str | None = None
    """HOST:PORT of the Ray cluster's head node; RAY_ADDRESS, or a new Ray on this machine, unless given."""
    partition: str | None = None
    """Slurm partition; Slurm's default unless given."""
    time: str | None = None
    """Time limit of a Slurm job, such as 90 (minutes) or 2-00:00:00; 4:00:00 unless given. Longer runs are requeued."""
    cpus_per_run: int | None = None
    """Cores that ray or slurm gives to a run; the threads of the run unless given."""
    gpus_per_run: int | None = None
    """GPUs that ray or slurm gives to a run, used through torchrun if several; with ray 1 if there are any, unless given."""

    def machines(self) -> "Machines":
        from ..lab.machines import Machines

        return Machines(self.engine, self.address, self.partition, self.time, self.cpus_per_run, self.gpus_per_run)
