"""Memory allocation of training steps on a CPU."""

import ctypes
import sys

# Options of glibc's mallopt, from malloc.h: the free space at the top of the heap above which it is returned to the system, the
# amount requested from the system at a time, and the allocation size from which mmap is used.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
GIB = 1 << 30


def keep_freed_memory() -> None:
    """Configures malloc to keep freed memory in the process instead of returning it to the system.

    Every step allocates and frees the same tensors. By default, large ones are returned to the system and their pages are
    faulted in and zeroed again, which takes about 10% of a step at 60M parameters (benchmarks/allocator.py) and is negligible
    at mini size. Fragmentation can increase the memory; up to 7% was measured. Has no effect without glibc.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in ((MMAP_THRESHOLD, GIB), (TRIM_THRESHOLD, GIB), (TOP_PAD, GIB >> 4)):
            mallopt(option, size)
