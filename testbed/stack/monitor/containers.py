"""The document of ``/v1/containers``: what each container asked, gets and waits for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.native.region import StateFlag
from testbed.native.region_watch import Counters
from testbed.stack.monitor.counters import Rates
from testbed.stack.monitor.mirror import ContainerId
from testbed.stack.monitor.pods import MonitoredPod
from testbed.stack.monitor.samples import Tick
from testbed.stack.monitor.shares import share_pct
from testbed.stack.monitor.swapped import swapped_bytes
from testbed.units import MIB

DEGRADED, PAUSED, DENIED = "degraded", "paused", "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is known of a node's containers at one moment.

    Attributes:
        pods: Those that have not ended, with their promised shares.
        ticks: The cards' samples of the span.
        counters: The library's counters, where the container has a region.
        rates: Of (container, device number) over the span.
        unenforced: Why nothing holds a container's limits.
        counted: What the library counts, of (container, device number) with scaled memory.
    """

    pods: Sequence[MonitoredPod]
    ticks: Sequence[Tick]
    counters: Mapping[ContainerId, Counters]
    rates: Mapping[tuple[ContainerId, int], Rates]
    unenforced: Mapping[ContainerId, str]
    counted: Mapping[tuple[ContainerId, int], int] = field(default_factory=dict)


def document(node: str, now: float, span_s: float, seen: Watched) -> dict[str, Any]:
    """Return the answer: one entry a container that was promised a card."""
    entries = [
        _container(pod, container, seen)
        for pod in seen.pods
        # Init containers while they run alone; sidecars run for the pod's life.
        for container in (*sorted(pod.init_shares.keys() & pod.started), *pod.shares)
    ]
    return {"node": node, "now": now, "span_s": span_s, "containers": entries}


def _container(pod: MonitoredPod, container: str, seen: Watched) -> dict[str, Any]:
    who = (pod.key.uid, container)
    counters = seen.counters.get(who)
    devices = [
        _device(who, number, share.uuid, share.mem_mib, share.core_pct, seen)
        for number, share in enumerate(pod.promised[container])
    ]
    return {
        "namespace": pod.key.namespace,
        "pod": pod.key.name,
        "pod_uid": pod.key.uid,
        "container": container,
        "running": container in pod.started,
        "policy": counters.constant.policy.name.lower() if counters else None,
        "priority": counters.constant.priority if counters else None,
        "flags": _flags(who, devices, counters, seen),
        "unenforced": seen.unenforced.get(who),
        "devices": devices,
    }


def _device(
    who: ContainerId, number: int, uuid: str, mem_mib: int, core_pct: int, seen: Watched
) -> dict[str, Any]:
    counters = seen.counters.get(who)
    rates = seen.rates.get((who, number))
    last = [
        sample
        for sample in (seen.ticks[-1].samples if seen.ticks else ())
        if sample.uuid == uuid and (sample.pod_uid, sample.container) == who
    ]
    share = share_pct(seen.ticks, who, uuid)
    known = counters is not None and number < len(counters.denied)
    return {
        "uuid": uuid,
        "number": number,
        "asked": {"bytes": mem_mib * MIB, "core_pct": core_pct},
        # What the library holds now: limits can be changed while a container runs.
        "limit": _limit(counters, number),
        "got": {
            "bytes": sum(sample.bytes for sample in last),
            "swapped_bytes": swapped_bytes(seen.ticks, who, uuid, seen.counted.get((who, number))),
            "processes": len(last),
            "share_pct": None if share is None else round(share, 2),
        },
        "waited": _rounded(rates.waited if rates else None),
        "waited_for": {
            "budget": _rounded(
                max(0.0, rates.waited - rates.waited_queue - rates.waited_priority)
                if rates
                else None
            ),
            "queue": _rounded(rates.waited_queue if rates else None),
            "priority": _rounded(rates.waited_priority if rates else None),
        },
        "launches_per_s": _rounded(rates.launches_per_s if rates else None),
        "launches": counters.launches[number] if counters and known else None,
        "granted_ns": counters.granted_ns[number] if counters and known else None,
        "waited_ns": counters.waited_ns[number] if counters and known else None,
        "denied": counters.denied[number] if counters and known else None,
    }


def _limit(counters: Counters | None, number: int) -> dict[str, int] | None:
    if counters is None or number >= len(counters.constant.devices):
        return None
    device = counters.constant.devices[number]
    return {"bytes": device.memory_limit_bytes, "core_pct": device.sm_limit_pct}


def _flags(
    who: ContainerId,
    devices: Sequence[Mapping[str, Any]],
    counters: Counters | None,
    seen: Watched,
) -> list[str]:
    flags = []
    if counters is not None and StateFlag.DEGRADED in counters.state:
        flags.append(DEGRADED)
    if who in seen.unenforced:
        flags.append("unenforced")
    # Measured, not concluded from who else is active: it may have had nothing to launch.
    if any(device["waited_for"]["priority"] for device in devices):
        flags.append(PAUSED)
    rates = [seen.rates.get((who, number)) for number in range(len(devices))]
    if any(rate is not None and rate.denied for rate in rates):
        flags.append(DENIED)
    return flags


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
