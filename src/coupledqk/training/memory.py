"""Peak memory of a run."""

import resource
import sys
from pathlib import Path

import torch

MIB = 2**20


class PeakMemory:
    """Of the device that trains, or of the process if that is a CPU, since this object was made.

    A process that trains several runs has one peak; Linux and CUDA let it start again, elsewhere it is that of all of them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.resettable = device.type != "cuda" and _reset_resident_peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def mib(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) // MIB
        if self.resettable:
            return _resident_peak()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (MIB if sys.platform == "darwin" else 2**10)


def _reset_resident_peak() -> bool:
    """Whether the system (Linux) lets the process reset its peak."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _resident_peak() > 0
    except (OSError, StopIteration):
        return False


def _resident_peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) // 2**10
