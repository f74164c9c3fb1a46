"""Give memory back to the system as soon as it is free.

Reading a run takes large arrays for moments. glibc keeps what was freed for later, in a heap for each thread: the
server of a live run with a full tail took 300 MiB instead of 140, and less CPU. A process of ours may choose.
"""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
LARGE = 1 << 20
"""Bytes from which on an array is a mapping of its own, which goes when it is freed."""
HEAPS = 2
"""Heaps for all threads together."""


def keep_little() -> bool:
    """Tell the allocator of this process; say whether it understood (glibc does)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library: it has its own ways
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE)) and bool(mallopt(M_ARENA_MAX, HEAPS))
