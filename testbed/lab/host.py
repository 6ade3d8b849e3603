"""What a record says of the machine."""

from __future__ import annotations

import os
import platform

from testbed.units import MIB


def host() -> str:
    """Return kernel, processors that this process may use, and memory, for people."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    processors = len(os.sched_getaffinity(0))
    memory = pages * size / MIB / 1024
    return f"{platform.system()} {platform.release()}, {processors} CPUs, {memory:.0f} GiB"
