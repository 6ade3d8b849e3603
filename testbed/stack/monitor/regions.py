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


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """One device of a container, as its library counts."""

    uuid: str
    limit_bytes: int
    context_bytes: int
    module_bytes: int
    buffer_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.context_bytes + self.module_bytes + self.buffer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegion:
    """A region that validates; ``processes`` are those that live."""

    devices: tuple[RegionDevice, ...]
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProblem:
    """Why a container has no region that counts: ``no-region``, ``unreadable-region``."""

    reason: str


def regions_of(
    hook: Path, containers: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], ContainerRegion | RegionProblem]:
    """Return the region of each (pod uid, container)."""
    return {who: _region(hook / "containers" / f"{who[0]}_{who[1]}", who) for who in containers}


def _region(folder: Path, who: tuple[str, str]) -> ContainerRegion | RegionProblem:
    try:
        files = [path for path in sorted(folder.glob("*.cache")) if _plain(path)]
        if not files:
            return RegionProblem(reason="no-region")
        for path in files:
            try:
                view = read_region(path)
            except CodecError:
                continue
            # A copy of another container's region is valid in itself.
            if (view.constant.pod_uid, view.constant.container_name) == who:
                return _counted(view)
    except OSError:
        pass  # the folder goes while we look
    return RegionProblem(reason="unreadable-region")


def _plain(region: Path) -> bool:
    """Whether region and lock are files, as the plugin made them: a pipe would block us."""
    return all(
        not path.exists() or stat.S_ISREG(path.lstat().st_mode)
        for path in (region, lock_path(region))
    )


def _counted(view: RegionView) -> ContainerRegion:
    return ContainerRegion(
        devices=tuple(
            RegionDevice(
                uuid=device.uuid,
                limit_bytes=device.memory_limit_bytes,
                context_bytes=use.context_bytes,
                module_bytes=use.module_bytes,
                buffer_bytes=use.buffer_bytes,
            )
            for device, use in zip(view.constant.devices, view.used, strict=True)
        ),
        processes=len(view.processes),
    )
