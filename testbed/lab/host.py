"""What a record says of the machine."""

from __future__ import annotations

import os
import platform

from testbed.units import MIB

#: Programs for each processor, from which on times that are measured mean little: half
#: of what is due comes late. A run by itself stays below one.
_BUSY = 2.0


def load() -> float:
    """Return how many programs wanted to run, averaged over the last minute."""
    return os.getloadavg()[0]


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def load_text(most: float) -> str:
    """Return a load for people."""
    return f"{most:.1f} on {processors()} CPUs"


def busy_reason(most: float) -> str:
    """Return what a busy machine means for a run that did not pass; empty for a quiet one.

    Args:
        most: The highest load of the run.
    """
    if most <= _BUSY * processors():
        return ""
    return (
        f"the machine was busy (load {load_text(most)}), which alone can make shares and"
        " times come out wrong: run it again when the machine is quiet"
    )


def host() -> str:
    """Return kernel, processors that this process may use, and memory, for people."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory = pages * size / MIB / 1024
    return f"{platform.system()} {platform.release()}, {processors()} CPUs, {memory:.0f} GiB"
