"""What a process had of the machine's processors, and how long it waited for one.

A figure that was taken on a busy machine can be judged by it: what a program computes is
its own, what it waits for is others'.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Time of all threads of a process since its start, ns."""

    ran_ns: int = 0
    waited_ns: int = 0

    def __sub__(self, before: Scheduled) -> Scheduled:
        return Scheduled(self.ran_ns - before.ran_ns, self.waited_ns - before.waited_ns)


def scheduled(pid: int, proc: Path = Path("/proc")) -> Scheduled | None:
    """Return what a process had so far; None where the kernel does not count it.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat: time on a
    processor, time on a run queue, slices. Threads that ended are not in it.
    """
    counted = []
    try:
        for file in (proc / str(pid) / "task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it just ended
                ran, waited, _ = file.read_text().split()
                counted.append((int(ran), int(waited)))
    except (OSError, ValueError):
        return None
    if not counted:
        return None
    return Scheduled(sum(ran for ran, _ in counted), sum(waited for _, waited in counted))
