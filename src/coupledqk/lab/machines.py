"""Where the runs of a queue are trained: this machine, a Ray cluster or a Slurm cluster. Torch-free."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import RunConfig
from ..errors import CoupledQKError
from .engine import Engine

OPTIONS = {
    "local": (),
    "ray": ("address", "cpus_per_run", "gpus_per_run"),
    "slurm": ("partition", "time", "cpus_per_run", "gpus_per_run"),
}
"""Names of the options of each engine."""
TIMES = {
    r"(\d{1,9})(?::([0-5]?\d))?": (60, 1),
    r"(\d{1,9}):([0-5]?\d):([0-5]?\d)": (3600, 60, 1),
    r"(\d{1,9})-(\d{1,9})(?::([0-5]?\d))?(?::([0-5]?\d))?": (86400, 3600, 60, 1),
}
"""Slurm's notations of a time limit: MINUTES[:SECONDS], HOURS:MINUTES:SECONDS and DAYS-HOURS[:MINUTES[:SECONDS]], with the
number of seconds in a unit of each part."""


@dataclass(frozen=True)
class Machines:
    """Where runs are trained, and the resources of each run. The machines of a cluster share the disk of the run folders."""

    engine: Literal["local", "ray", "slurm"] = "local"
    address: str | None = None
    """HOST:PORT of a Ray cluster's head node. The default is RAY_ADDRESS or, if it is not set, a new Ray instance here."""
    partition: str | None = None
    """Slurm partition; Slurm's default partition if not given."""
    time: str | None = None
    """Time limit of a Slurm job; 4 hours by default. A run that needs longer is requeued and resumes."""
    cpus_per_run: int | None = None
    """Number of cores per run; by default its number of threads."""
    gpus_per_run: int | None = None
    """Number of GPUs per run. The default is 0, or 1 if a Ray cluster has GPUs and the run may use them."""

    def __post_init__(self) -> None:
        for name in ("address", "partition", "time", "cpus_per_run", "gpus_per_run"):
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            if value is not None and name not in OPTIONS[self.engine]:
                takers = " or ".join(engine for engine, names in OPTIONS.items() if name in names)
                raise CoupledQKError(
                    f"{flag} {value}: engine {self.engine!r} has no such option; add --engine {takers}"
                )
        for name, least in (("cpus_per_run", 1), ("gpus_per_run", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise CoupledQKError(f"--{name.replace('_', '-')} {value}: expected at least {least}")
        if self.time is not None:
            minutes_of(self.time)

    def cpus(self, configs: Sequence[RunConfig]) -> int:
        """The number of cores of each run."""
        return self.cpus_per_run or max(config.runtime.threads or 1 for config in configs)

    def open_cluster(self, configs: Sequence[RunConfig], jobs: int | None, jobs_folder: Path) -> Engine:
        """Connects to the cluster. `jobs_folder` is for Slurm's scripts and logs."""
        cpus = self.cpus(configs)
        if self.engine == "ray":
            from .engine_ray import RayEngine

            wants_gpu = any(config.runtime.device != "cpu" for config in configs)
            return RayEngine(self.address, jobs, cpus, self.gpus_per_run, wants_gpu)
        from .engine_slurm import SlurmEngine

        minutes = minutes_of(self.time or "4:00:00")
        return SlurmEngine.open(jobs_folder, jobs, cpus, self.gpus_per_run or 0, self.partition, minutes)


LOCAL = Machines()


def minutes_of(time: str) -> int:
    """Converts a time limit in Slurm's notation, such as 90, 4:00:00 or 2-00:00:00, to minutes, rounded up."""
    for pattern, units in TIMES.items():
        if found := re.fullmatch(pattern, time, re.ASCII):
            seconds = sum(unit * int(part or 0) for unit, part in zip(units, found.groups(), strict=True))
            if seconds > 0:
                return math.ceil(seconds / 60)
    raise CoupledQKError(
        f"--time {time}: expected minutes, minutes:seconds, hours:minutes:seconds or days-hours:minutes:seconds, such as 90 or "
        "2-00:00:00"
    )
