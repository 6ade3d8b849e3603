"""The shared regions of the node's containers, read for metrics only.

A tenant can write his region and its folder: nothing here is a measurement of the
card, and whatever does not validate is a problem with a name, never an exception.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import CodecError
from testbed.native.region import RegionView, lock_path, read_region
from testbed.stack.codec import region_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """One device of a container, as its library counts.

    Attributes:
        limit_bytes: What the library holds now, 0 for nothing.
        limit_pct: Likewise of compute.
    """

    uuid: str
    limit_bytes: int
    limit_pct: int = 0
    context_bytes: int
    module_bytes: int
    buffer_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.context_bytes + self.module_bytes + self.buffer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegion:
    """A region that validates.

    Attributes:
        devices: In the order of the container's devices.
        processes: Those that live and run under the library.
        pids: Theirs in this process' namespace, None where the kernel does not tell
            one of them.
        last_kernel_ns: CLOCK_MONOTONIC of the newest launch, 0 before the first.
    """

    devices: tuple[RegionDevice, ...]
    processes: int
    pids: frozenset[int] | None = frozenset()
    last_kernel_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProblem:
    """Why a container has no region that counts: ``no-region``, ``unreadable-region``."""

    reason: str


def region_path(hook: Path, who: tuple[str, str]) -> Path:
    """Return where the plugin makes the region of a (pod uid, container)."""
    return hook / "containers" / f"{who[0]}_{who[1]}" / f"{region_name(*who)}.cache"


def regions_of(
    hook: Path, containers: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], ContainerRegion | RegionProblem]:
    """Return the region of each (pod uid, container)."""
    return {who: _region(region_path(hook, who), who) for who in containers}


def _region(path: Path, who: tuple[str, str]) -> ContainerRegion | RegionProblem:
    try:
        if not _plain(path):
            return RegionProblem(reason="no-region")
        view = read_region(path)
    except (CodecError, OSError):  # also where the folder goes while we look
        return RegionProblem(reason="unreadable-region")
    # A copy of another container's region is valid in itself.
    if (view.constant.pod_uid, view.constant.container_name) != who:
        return RegionProblem(reason="unreadable-region")
    return _counted(view)


def _plain(region: Path) -> bool:
    """Whether region and lock are files, as the plugin made them: a pipe would block us."""
    try:
        return stat.S_ISREG(region.lstat().st_mode) and _file_or_nothing(lock_path(region))
    except FileNotFoundError:
        return False


def _file_or_nothing(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def _counted(view: RegionView) -> ContainerRegion:
    return ContainerRegion(
        devices=tuple(
            RegionDevice(
                uuid=device.uuid,
                limit_bytes=device.memory_limit_bytes,
                limit_pct=device.sm_limit_pct,
                context_bytes=use.context_bytes,
                module_bytes=use.module_bytes,
                buffer_bytes=use.buffer_bytes,
            )
            for device, use in zip(view.constant.devices, view.used, strict=True)
        ),
        processes=len(view.processes),
        pids=frozenset(p.owner_pid for p in view.processes)
        if all(p.owner_pid for p in view.processes)
        else None,
        last_kernel_ns=max((p.active_ns for p in view.processes), default=0),
    )
