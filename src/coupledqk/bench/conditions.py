"""Detects a busy machine during a benchmark: load average, steal time and CPU time of other processes. Torch-free."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .records import Conditions

OTHER_CORES, STEAL, LOAD = 0.1, 0.01, 0.5
"""Thresholds above which a machine counts as busy: cores used by other processes, share of steal time, and load average in
excess of the benchmark's threads."""

IDLE, IOWAIT, STOLEN = 3, 4, 7  # indices of fields in a cpu line of /proc/stat
TIMES = 8  # the fields after these (guest times) are included in them


@dataclass(frozen=True)
class Counters:
    """A snapshot of CPU time counters in seconds, summed over the observed cores."""

    time: float
    load: float
    busy: float
    stolen: float
    own: float
    """CPU time of this process and the children it has waited for."""


def available() -> tuple[int, ...]:
    """The cores available to this process; empty if the operating system does not report them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def read_counters(cores: Sequence[int]) -> Counters | None:
    """The current counters of the given cores; None on a system without /proc/stat."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        load = os.getloadavg()[0]
    except OSError:
        return None
    names = {f"cpu{core}" for core in cores}
    busy, stolen = core_times([line for line in lines if line.split(" ", 1)[0] in names])
    tick = os.sysconf("SC_CLK_TCK")
    return Counters(time.monotonic(), load, busy / tick, stolen / tick, sum(os.times()[:4]))


def core_times(lines: Sequence[str]) -> tuple[int, int]:
    """Busy and stolen ticks, summed over the per-core lines of /proc/stat."""
    fields = [[int(word) for word in line.split()[1 : TIMES + 1]] for line in lines]
    stolen = sum(times[STOLEN] for times in fields)
    return sum(sum(times) - times[IDLE] - times[IOWAIT] for times in fields) - stolen, stolen


def conditions(before: Counters | None, after: Counters | None, threads: int, cores: int) -> Conditions | None:
    """The conditions between two snapshots; None if either is missing."""
    if before is None or after is None or after.time <= before.time or not cores:
        return None
    seconds = after.time - before.time
    others = (after.busy - before.busy - (after.own - before.own)) / seconds
    return Conditions(before.load, max(0.0, others), (after.stolen - before.stolen) / (seconds * cores), cores, threads)


def observe(cores: Sequence[int], threads: int) -> Callable[[], Conditions | None]:
    """Starts to observe the cores. The returned function gives the conditions since this call."""
    before = read_counters(cores)
    return lambda: conditions(before, read_counters(cores), threads, len(cores))


def reasons(found: Conditions) -> list[str]:
    """The reasons for which a machine counts as busy; empty if it was quiet."""
    said = []
    if found.other_cores > OTHER_CORES:
        said.append(f"other processes used {found.other_cores:.1f} of {found.cores} cores")
    if found.steal > STEAL:
        said.append(f"{100 * found.steal:.1f}% of the time was stolen by the hypervisor")
    if found.load > found.threads + LOAD:
        said.append(f"the load average was {found.load:.1f}, while the benchmark used {found.threads} thread(s)")
    return said


def verdict(launches: Sequence[Conditions]) -> str:
    """One line for a report: whether the machine was quiet in all launches, or how busy it was in the worst launch."""
    if not launches:
        return "it is unknown whether the machine was busy: the operating system does not report it"
    busy = [found for found in launches if reasons(found)]
    if not busy:
        most = max(found.other_cores for found in launches)
        return f"the machine was quiet: other processes used at most {most:.2f} of {launches[0].cores} cores"
    worst = max(busy, key=lambda found: (found.other_cores + found.steal * found.cores, found.load))
    where = f" in {len(busy)} of {len(launches)} launches" if len(launches) > 1 else ""
    return f"THE MACHINE WAS BUSY{where}: {', '.join(reasons(worst))}; repeat the benchmark on a quiet machine"
