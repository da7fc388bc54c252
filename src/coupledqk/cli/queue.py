"""The flags --jobs, --engine and options of the engines, for every command that trains on the laboratory's queue."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .plugin import WithPlugin

if TYPE_CHECKING:
    from ..lab.machines import Machines


@dataclass(frozen=True, kw_only=True)
class WithQueue(WithPlugin):
    """A command that trains many runs."""

    jobs: int | None = None
    """Number of runs to train at a time. The default is the number of cores divided by the threads per run on this machine, as
    many as fit with ray, and 16 with slurm."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """Where runs are trained: on this machine, or on a Ray or Slurm cluster that shares its disk (docs/scaling.md)."""
    address: str | None = None
    """HOST:PORT of the Ray cluster's head node. By default RAY_ADDRESS is used or, if it is not set, a new Ray instance on this
    machine."""
    partition: str | None = None
    """Slurm partition to submit to; Slurm's default partition if not given."""
    time: str | None = None
    """Time limit of a Slurm job, such as 90 (minutes) or 2-00:00:00; 4:00:00 by default. Longer runs are requeued."""
    cpus_per_run: int | None = None
    """Number of cores per run with ray or slurm; by default the number of threads of the run."""
    gpus_per_run: int | None = None
    """Number of GPUs per run with ray or slurm; several are used through torchrun. With ray the default is 1 if the cluster has
    GPUs."""

    def machines(self) -> "Machines":
        from ..lab.machines import Machines

        return Machines(self.engine, self.address, self.partition, self.time, self.cpus_per_run, self.gpus_per_run)
