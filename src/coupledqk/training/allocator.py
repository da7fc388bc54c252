"""Memory allocation of training steps on a CPU."""

import ctypes
import sys

# Options of glibc's mallopt, from malloc.h: how much is free at the end of the heap before it goes back to the system, how much
# is fetched at a time, and from what size on an allocation is a mapping of its own.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
GIB = 1 << 30


def keep_freed_memory() -> None:
    """Lets the process keep what it frees.

    Every step allocates and frees the same tensors. By default the larger ones go back to the system and come again page by
    page, each page cleared: a tenth of a step's time at 60M parameters (benchmarks/allocator.py), nothing at mini size. Holes
    between tensors may cost some memory, up to 7% were seen. Does nothing without glibc.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in ((MMAP_THRESHOLD, GIB), (TRIM_THRESHOLD, GIB), (TOP_PAD, GIB >> 4)):
            mallopt(option, size)
