"""What a CPU run asks of the libraries that allocate memory: glibc, and oneDNN with its code for each product."""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h> of glibc
KEPT_BYTES = (1 << 30, 1 << 25)  # 32 MiB is the most that an older glibc takes
NEVER = -1  # for M_TRIM_THRESHOLD: however much is free
PRIMITIVE_CACHES = "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # PyTorch's own, and oneDNN's
PRIMITIVES = "256"  # most shapes of a run of `rook_nano`, which `ops.rounded` keeps few


def keep_freed_memory() -> bool:
    """Makes glibc keep large freed blocks of this process for the next tensors; False without glibc on Linux."""
    # By default a block above 32 MiB goes back to the system when it is freed, and so does the end of the heap, and the
    # next step pays for every page anew: at 124 M parameters more than half of the head's time.
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in KEPT_BYTES) and mallopt(M_TRIM_THRESHOLD, NEVER) == 1


def keep_few_primitives() -> None:
    """Bounds what oneDNN and PyTorch's layer above it keep for each shape of product that was ever computed.

    Both look at their variable at their first product; one that is set already stands. With their own bounds, of 1024
    shapes, memory may grow for hundreds of steps.
    """
    for name in PRIMITIVE_CACHES:
        os.environ.setdefault(name, PRIMITIVES)


def release_freed_memory() -> bool:
    """Makes glibc return all freed blocks of this process to the system; False if there were none, or no glibc."""
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (OSError, AttributeError):  # another C library
        return False
