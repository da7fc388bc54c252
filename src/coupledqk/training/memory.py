"""Peak memory of a run."""

import resource
import sys
from pathlib import Path

import torch

MB = 10**6


class PeakMemory:
    """Peak memory since the creation of this object: that of the GPU, or that of the process if it trains on a CPU.

    If a process trains several runs, the peak is reset for each on Linux and CUDA. Elsewhere it is the peak of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.resettable = device.type != "cuda" and _reset_resident_peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def mb(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) // MB
        if self.resettable:
            return _resident_peak()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10) // MB


def _reset_resident_peak() -> bool:
    """Resets the peak of the process. Returns whether the operating system supports it (Linux does)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _resident_peak() > 0
    except (OSError, StopIteration):
        return False


def _resident_peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) * 2**10 // MB
