"""Freed memory is kept in the process for reuse."""

import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from coupledqk.training.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for step in range(12):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones((1 << 24) - 4096 * step)  # which fits where the one before was
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_fetched(how: str) -> int:
    """Page faults in ten steps that allocate nearly 64 MiB each, more than glibc keeps by default."""
    return int(subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_is_reused_by_later_steps():
    fetched = pages_fetched("as it is")
    assert fetched >= 10 * 63 * 1024 / 4
    assert pages_fetched("keep") < 0.1 * fetched
