"""``/metrics``: HAMi's names for cards and containers, and who runs without limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from testbed.stack.devices import CardReading, Device
from testbed.stack.devices.nvidia import model_name
from testbed.stack.monitor.pods import MonitoredPod
from testbed.stack.monitor.regions import ContainerRegion, RegionProblem

ZONE = "vGPU"
_CARD = ("zone", "node", "device_index", "device_uuid", "device_type")
_CONTAINER = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
_UNENFORCED = ("zone", "namespace", "pod", "container", "reason")

#: (pod uid, container name)
ContainerId = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a scrape shows."""

    node: str
    devices: Sequence[Device]
    readings: Mapping[str, CardReading]
    pods: Sequence[MonitoredPod]
    regions: Mapping[ContainerId, ContainerRegion | RegionProblem]
    on_card: frozenset[ContainerId]


def exposition(seen: Observed) -> bytes:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed([*_cards(seen), *_containers(seen), _unenforced(seen)]))
    return generate_latest(registry)


def unenforced(seen: Observed) -> tuple[tuple[MonitoredPod, str, str], ...]:
    """Return the running containers with a GPU whose limits nothing holds, and why.

    Where the library could not be loaded, the region stays without a record while the
    card counts a process of the container.
    """
    found = []
    for pod in seen.pods:
        for container in sorted(pod.shares.keys() & pod.started):
            who = (pod.key.uid, container)
            region = seen.regions.get(who, RegionProblem(reason="no-region"))
            if isinstance(region, RegionProblem):
                found.append((pod, container, region.reason))
            elif who in seen.on_card and not region.processes:
                found.append((pod, container, "library-not-loaded"))
    return tuple(found)


def _cards(seen: Observed) -> Iterable[Metric]:
    used = _gauge("hami_host_gpu_memory_used_bytes", "Memory in use, as the card counts it", _CARD)
    busy = _gauge("hami_host_gpu_utilization_ratio", "Time in which a kernel ran, 0 to 1", _CARD)
    sick = _gauge("vgpu_card_unreadable", "1 while the card gives no answer", _CARD)
    for device in seen.devices:
        labels = (ZONE, seen.node, str(device.index), device.uuid, model_name(device.name))
        reading = seen.readings.get(device.uuid)
        if reading is None:
            continue
        sick.add_metric(labels, float(bool(reading.error)))
        if reading.error:
            continue
        used.add_metric(labels, float(reading.used_bytes))
        if reading.utilization_pct is not None:
            busy.add_metric(labels, reading.utilization_pct / 100)
    return used, busy, sick


def _containers(seen: Observed) -> Iterable[Metric]:
    used = _gauge("hami_vgpu_memory_used_bytes", "Memory that the library counts", _CONTAINER)
    limit = _gauge("hami_vgpu_memory_limit_bytes", "Memory that the container may use", _CONTAINER)
    context = _gauge("hami_vgpu_memory_context_bytes", "Of it, contexts", _CONTAINER)
    module = _gauge("hami_vgpu_memory_module_bytes", "Of it, modules", _CONTAINER)
    buffer = _gauge("hami_vgpu_memory_buffer_bytes", "Of it, allocations", _CONTAINER)
    for pod in seen.pods:
        for container in pod.shares:
            region = seen.regions.get((pod.key.uid, container))
            if not isinstance(region, ContainerRegion):
                continue
            for index, device in enumerate(region.devices):
                labels = (ZONE, pod.key.namespace, pod.key.name, container, str(index), device.uuid)
                used.add_metric(labels, float(device.used_bytes))
                limit.add_metric(labels, float(device.limit_bytes))
                context.add_metric(labels, float(device.context_bytes))
                module.add_metric(labels, float(device.module_bytes))
                buffer.add_metric(labels, float(device.buffer_bytes))
    return used, limit, context, module, buffer


def _unenforced(seen: Observed) -> Metric:
    gauge = _gauge(
        "vgpu_container_unenforced", "1 for a container whose limits nothing holds", _UNENFORCED
    )
    for pod, container, reason in unenforced(seen):
        gauge.add_metric((ZONE, pod.key.namespace, pod.key.name, container, reason), 1.0)
    return gauge


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))


class _Fixed:
    """A collector of families that are already there."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
