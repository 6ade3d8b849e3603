"""Reads what the kernel says of processes, and remembers whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from testbed.stack.monitor.whose import NOBODY, Anchor, Owner, ProcessFacts, anchor_of, owner

PROC = Path("/proc")


class Processes:
    """Pids and their owners; a pid is known by its start time as well."""

    def __init__(
        self,
        container_name: Callable[[str, str], str],
        *,
        proc: Path = PROC,
        anchor: Anchor | None = None,
    ) -> None:
        self._proc = proc
        self._container_name = container_name
        self.anchor = anchor or anchor_of(_read(proc / "self/mountinfo") or "")
        self._known: dict[int, tuple[str, Owner]] = {}

    def owners(self, pids: Iterable[int]) -> dict[int, Owner]:
        """Return the owner of each pid.

        A certain answer is kept as long as the process lives: it cannot change its
        container, but it might change what its mount table shows.
        """
        found = {}
        known = {}
        for pid in set(pids):
            started = _started(_read(self._proc / str(pid) / "stat") or "")
            before = self._known.get(pid)
            if before is not None and before[0] == started:
                who = before[1]
            else:
                who = owner(pid, self._facts, self.anchor, self._container_name)
            found[pid] = who
            if who.pod_uid != NOBODY.pod_uid and who.container and started:
                known[pid] = (started, who)
        self._known = known
        return found

    def _facts(self, pid: int) -> ProcessFacts | None:
        folder = self._proc / str(pid)
        stat = _read(folder / "stat")
        if stat is None:
            return None
        return ProcessFacts(
            parent=_parent(stat),
            comm=_comm(stat),
            cgroup=_read(folder / "cgroup") or "",
            mountinfo=_read(folder / "mountinfo") or "",
        )


def alive(pid: int, *, proc: Path = PROC) -> bool:
    """Return whether a process is there (a zombie is not: it holds nothing)."""
    fields = _fields(_read(proc / str(pid) / "stat") or "")
    return bool(fields) and fields[0] not in ("Z", "X")


def _read(path: Path) -> str | None:
    """Return a file's text, None where the process has ended (or is a zombie)."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _comm(stat: str) -> str:
    return stat[stat.find("(") + 1 : stat.rfind(")")]


def _fields(stat: str) -> list[str]:
    """Return the fields after the name, which may itself hold blanks and parentheses."""
    return stat[stat.rfind(")") + 1 :].split()


def _parent(stat: str) -> int:
    fields = _fields(stat)
    return int(fields[1]) if len(fields) > 1 else 0


def _started(stat: str) -> str:
    fields = _fields(stat)
    return fields[19] if len(fields) > 19 else ""
