"""What a region says, as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path


class Policy(enum.IntEnum):
    """When a compute limit is enforced (GPU_CORE_UTILIZATION_POLICY)."""

    DEFAULT = 0
    FORCE = 1
    DISABLE = 2


class StateFlag(enum.IntFlag):
    """What the container's processes report about themselves."""

    DEGRADED = 1
    NO_REGION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """A device of the container; its place in the tuple is its limit's number.

    Attributes:
        uuid: ``GPU-…``, as NVML and the driver tell it.
        memory_limit_bytes: 0 = none.
        sm_limit_pct: 0 or 100 = none.
    """

    uuid: str
    memory_limit_bytes: int
    sm_limit_pct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionConstant:
    """What the plugin decides before the container starts."""

    devices: tuple[RegionDevice, ...]
    pod_uid: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    container_name: str = ""
    policy: Policy = Policy.DEFAULT
    priority: int = 1
    oversubscribe: bool = False
    priority_floor_pct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUse:
    """Compute of one device, as the library counts it; running totals.

    Attributes:
        launches: Kernels, graphs, large copies and fills.
        granted_ns: Device time by the library's own reckoning.
        waited_budget_ns: Launches held back because the share was used up. Waits sum over
            launches: sixteen threads that wait a second have waited sixteen.
        waited_queue_ns: Because enough device time was in flight already.
        waited_priority_ns: Because a pod of higher priority had work.
    """

    launches: int = 0
    granted_ns: int = 0
    waited_budget_ns: int = 0
    waited_queue_ns: int = 0
    waited_priority_ns: int = 0

    @property
    def waited_ns(self) -> int:
        return self.waited_budget_ns + self.waited_queue_ns + self.waited_priority_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Bytes of one device, as the library counts them."""

    context_bytes: int = 0
    module_bytes: int = 0
    buffer_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.context_bytes + self.module_bytes + self.buffer_bytes

    def __add__(self, other: DeviceUse) -> DeviceUse:
        return DeviceUse(
            context_bytes=self.context_bytes + other.context_bytes,
            module_bytes=self.module_bytes + other.module_bytes,
            buffer_bytes=self.buffer_bytes + other.buffer_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A living process of the container.

    Attributes:
        record: Number of its record, which is its lock byte and HAMi's slot.
        pid: In the container's PID namespace, as the process itself wrote it.
        owner_pid: In the reader's namespace, as the kernel tells the lock's owner
            (0 where the owner is in no namespace below the reader's).
        uses: One entry a device, in the order of the constant part.
        compute: Likewise, of this process.
        last_error: CUresult of the newest launch that failed, 0 = none.
        active_ns: CLOCK_MONOTONIC of a recent launch, 0 before the first.
    """

    record: int
    pid: int
    owner_pid: int
    started_ns: int
    uses: tuple[DeviceUse, ...]
    compute: tuple[ComputeUse, ...] = ()
    last_error: int = 0
    active_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """A region at one moment; one entry a device.

    Attributes:
        compute: Totals of all processes, living or dead.
        unexplained_bytes: What the card counts for the container beyond ``used``; counts
            against the limit too.
    """

    constant: RegionConstant
    processes: tuple[ProcessView, ...]
    denied: tuple[int, ...]
    state: StateFlag
    used: tuple[DeviceUse, ...] = field(default=())
    compute: tuple[ComputeUse, ...] = field(default=())
    unexplained_bytes: tuple[int, ...] = field(default=())


def lock_path(region: Path) -> Path:
    """Return the lock file that belongs to a region."""
    return region.with_name(region.name + ".lock")
