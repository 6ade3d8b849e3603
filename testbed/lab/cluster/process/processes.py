"""Processes of a cluster on the host, found by its token, ended by descriptor.

Every process that holds a namespace of the cluster carries the cluster's token in
its command line: a number made for this one run of it, so that no reused pid and
no other testbed can be hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_REAPED_S = 0.5


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc showed it."""

    pid: int
    started: str  # in clock ticks since boot: with the pid, an identity
    argv: tuple[str, ...]

    @property
    def is_pid1(self) -> bool:
        """Whether this is an init of ours, not the unshare above it."""
        return "python" in Path(self.argv[0]).name


def read(pid: int) -> Process | None:
    """Return a live process, or None where it is gone or a zombie."""
    folder = Path("/proc") / str(pid)
    try:
        # The name, in parentheses, may hold anything: count from its end.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Process(pid, fields[19], tuple(argv[:-1]) or ("",))


def members(token: str) -> list[Process]:
    """Return the processes that carry a token, in the order of their pids."""
    pids = sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    found = (read(pid) for pid in pids if pid != os.getpid())
    return [each for each in found if each is not None and token in each.argv]


def end(victims: list[Process], *, deadline_s: float = 15.0) -> list[Process]:
    """Kill processes and wait until they have gone; return those that have not.

    A pid 1 is gone only when its whole namespace is.
    """
    open_fds: dict[int, Process] = {}
    try:
        for each in victims:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(each.pid)
                open_fds[fd] = each
                now = read(each.pid)  # after the descriptor: it cannot be another's by now
                if now is not None and now.started == each.started:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                elif now is not None:
                    del open_fds[fd]
                    os.close(fd)
        waiting = select.poll()
        for fd in open_fds:
            waiting.register(fd, select.POLLIN)
        left = dict(open_fds)
        until = time.monotonic() + deadline_s
        while left and (rest := until - time.monotonic()) > 0:
            for fd, _ in waiting.poll(rest * 1000):
                waiting.unregister(fd)
                left.pop(fd)
        _until_reaped([each for each in open_fds.values() if each not in left.values()])
        return list(left.values())
    finally:
        for fd in open_fds:
            os.close(fd)


def _until_reaped(ended: list[Process]) -> None:
    """Wait a moment for the machine's init to take what ended.

    Not longer: in some containers it never does, and a zombie holds nothing.
    """
    until = time.monotonic() + _REAPED_S
    while time.monotonic() < until and any(_is_zombie(each) for each in ended):
        time.sleep(0.01)


def _is_zombie(process: Process) -> bool:
    try:
        stat = (Path("/proc") / str(process.pid) / "stat").read_text()
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()
    return fields[0] == "Z" and fields[19] == process.started
