"""When the C library gives memory back (mallopt(3), malloc_trim(3))."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep(mmap_bytes: int, trim_bytes: int) -> bool:
    """Say what the C library keeps, and have it give back now what is free.

    Args:
        mmap_bytes: Pieces from this size on come from the kernel and go back to it.
        trim_bytes: What is free at the heap's end goes back from this size on.

    Returns:
        False where nothing is done: another C library than glibc has its own ways.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False
    done = mallopt(_M_MMAP_THRESHOLD, mmap_bytes) and mallopt(_M_TRIM_THRESHOLD, trim_bytes)
    trim(0)
    return bool(done)
