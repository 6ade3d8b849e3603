"""``/metrics``: HAMi's names for cards and containers, and who runs without limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from testbed import __version__
from testbed.native.region import StateFlag
from testbed.native.region_watch import Counters
from testbed.stack.devices import CardReading, Device
from testbed.stack.devices.nvidia import model_name
from testbed.stack.monitor.mirror import ContainerId
from testbed.stack.monitor.pods import MonitoredPod
from testbed.stack.monitor.regions import ContainerRegion, RegionProblem
from testbed.stack.monitor.samples import Sample, Tick
from testbed.stack.monitor.shares import share_pct
from testbed.stack.monitor.swapped import swapped_bytes
from testbed.units import MIB

ZONE = "vGPU"
_CARD = ("zone", "node", "device_index", "device_uuid", "device_type")
_CONTAINER = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
_UNENFORCED = ("zone", "namespace", "pod", "container", "reason")
_DEGRADED = ("zone", "namespace", "pod", "container")
_NS_PER_S = 1e9
#: What a driver may take for itself (code, stacks, heap) before the library can know of it.
_SLACK = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a scrape shows.

    Attributes:
        now_ns: CLOCK_MONOTONIC.
        readings: The newest of each card, by uuid.
        process_samples: Whether NVML tells which processes keep a card busy, by uuid.
        pods: Those that have not ended and were promised a card.
        regions: Of their containers.
        counters: Likewise, of those whose region validates.
        ticks: The samples of the last seconds.
        alive: Pids of the last tick that were still there after the regions were read.
        counted: What the library counts, of (container, device number) with scaled memory.
    """

    node: str
    now_ns: int = 0
    devices: Sequence[Device]
    readings: Mapping[str, CardReading]
    process_samples: Mapping[str, bool] = field(default_factory=dict)
    pods: Sequence[MonitoredPod]
    regions: Mapping[ContainerId, ContainerRegion | RegionProblem]
    counters: Mapping[ContainerId, Counters] = field(default_factory=dict)
    ticks: Sequence[Tick] = ()
    alive: frozenset[int] = frozenset()
    counted: Mapping[tuple[ContainerId, int], int] = field(default_factory=dict)

    @property
    def last(self) -> tuple[Sample, ...]:
        return self.ticks[-1].samples if self.ticks else ()


def exposition(seen: Observed) -> bytes:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    families = [
        _build(),
        *_cards(seen),
        *_memory(seen),
        *_compute(seen),
        *_counted(seen),
        _degraded(seen),
        _unenforced(seen),
    ]
    registry.register(_Fixed(families))
    return generate_latest(registry)


def unenforced(seen: Observed) -> tuple[tuple[MonitoredPod, str, str], ...]:
    """Return the running containers with a GPU whose limits nothing holds, and why.

    The card's processes are compared with those that hold a record in the region: where
    the library could not be loaded there is none, and a program that got around it is
    on the card without one, or holds more there than its library counts.
    """
    found = []
    for pod in seen.pods:
        for container in sorted(pod.promised.keys() & pod.started):
            who = (pod.key.uid, container)
            reason = _unheld(seen, who) or _raised(seen, pod, container)
            if reason := reason or _beyond(seen, pod, container):
                found.append((pod, container, reason))
    return tuple(found)


def _unheld(seen: Observed, who: ContainerId) -> str:
    region = seen.regions.get(who, RegionProblem(reason="no-region"))
    if isinstance(region, RegionProblem):
        return region.reason
    on_card = {s.pid for s in seen.last if (s.pod_uid, s.container) == who} & seen.alive
    if on_card and not region.processes:
        return "library-not-loaded"
    if region.pids is not None and on_card - region.pids:
        return "process-without-library"
    return ""


def _raised(seen: Observed, pod: MonitoredPod, container: str) -> str:
    """Say so where the library is told more than was promised.

    Limits are lowered and raised again up to the promise by the plugin alone; but the region
    is the container's own, and whoever writes it can have what he wants.
    """
    region = seen.regions.get((pod.key.uid, container))
    if not isinstance(region, ContainerRegion):
        return ""
    for device, share in zip(region.devices, pod.promised[container], strict=False):
        memory, held = share.mem_mib * MIB, device.limit_bytes
        if memory and not 0 < held <= memory:
            return "limit-above-promise"
        # No share and the whole card are written as 0 and as 100 percent alike.
        if 0 < share.core_pct < 100 and not 0 < device.limit_pct <= share.core_pct:
            return "limit-above-promise"
    return ""


def _beyond(seen: Observed, pod: MonitoredPod, container: str) -> str:
    """Say so where the card counts more than was promised, and the library does not.

    A first context may pass a small limit, and a limit may be lowered below what is held:
    the library counts both.
    """
    who = (pod.key.uid, container)
    region = seen.regions.get(who)
    if not isinstance(region, ContainerRegion) or len(seen.ticks) < 2:
        return ""
    for device, share in zip(region.devices, pod.promised[container], strict=False):
        promised = share.mem_mib * MIB
        # Of two looks: one may lie in the midst of something.
        held = min(
            sum(sample.bytes for sample in tick.of(who, share.uuid)) for tick in seen.ticks[-2:]
        )
        if promised and held > promised + _SLACK >= device.used_bytes:
            return "memory-beyond-library"
    return ""


def _build() -> Metric:
    gauge = _gauge("vgpu_build_info", "The monitor that answers", ("component", "version"))
    gauge.add_metric(("monitor", __version__), 1.0)
    return gauge


def _cards(seen: Observed) -> Iterable[Metric]:
    used = _gauge("hami_host_gpu_memory_used_bytes", "Memory in use, as the card counts it", _CARD)
    busy = _gauge("hami_host_gpu_utilization_ratio", "Time in which a kernel ran, 0 to 1", _CARD)
    moved = _gauge(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Time in which memory was read or written, 0 to 1",
        _CARD,
    )
    sick = _gauge("vgpu_card_unreadable", "1 while the card gives no answer", _CARD)
    told = _gauge(
        "vgpu_card_process_samples",
        "1 while NVML tells which processes keep the card busy; else shares err below",
        _CARD,
    )
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
        if reading.memory_utilization_pct is not None:
            moved.add_metric(labels, reading.memory_utilization_pct / 100)
        told.add_metric(labels, float(seen.process_samples.get(device.uuid, False)))
    return used, busy, moved, sick, told


def _devices(
    seen: Observed,
) -> Iterator[tuple[MonitoredPod, ContainerId, int, str, tuple[str, ...]]]:
    """Yield each device of each app container: pod, container, number, uuid, labels."""
    for pod in seen.pods:
        for container, shares in pod.shares.items():
            for index, share in enumerate(shares):
                key = pod.key
                labels = (ZONE, key.namespace, key.name, container, str(index), share.uuid)
                yield pod, (key.uid, container), index, share.uuid, labels


def _memory(seen: Observed) -> Iterable[Metric]:
    used = _gauge("hami_vgpu_memory_used_bytes", "Memory that the library counts", _CONTAINER)
    limit = _gauge("hami_vgpu_memory_limit_bytes", "Memory that the container may use", _CONTAINER)
    context = _gauge("hami_vgpu_memory_context_bytes", "Of it, contexts", _CONTAINER)
    module = _gauge("hami_vgpu_memory_module_bytes", "Of it, modules", _CONTAINER)
    buffer = _gauge("hami_vgpu_memory_buffer_bytes", "Of it, allocations", _CONTAINER)
    card = _gauge("hami_container_device_memory_bytes", "Memory that the card counts", _CONTAINER)
    outside = _gauge(
        "vgpu_container_swapped_bytes",
        "Memory that the container holds outside the card, where that is known",
        _CONTAINER,
    )
    for pod, who, index, uuid, labels in _devices(seen):
        if who[1] in pod.started:
            held = [s.bytes for s in _samples(seen, who, uuid)]
            card.add_metric(labels, float(sum(held)))
            swapped = swapped_bytes(seen.ticks, who, uuid, seen.counted.get((who, index)))
            if swapped is not None:
                outside.add_metric(labels, float(swapped))
        region = seen.regions.get(who)
        if not isinstance(region, ContainerRegion) or index >= len(region.devices):
            continue
        device = region.devices[index]
        used.add_metric(labels, float(device.used_bytes))
        limit.add_metric(labels, float(device.limit_bytes))
        context.add_metric(labels, float(device.context_bytes))
        module.add_metric(labels, float(device.module_bytes))
        buffer.add_metric(labels, float(device.buffer_bytes))
    return used, limit, context, module, buffer, card, outside


def _compute(seen: Observed) -> Iterable[Metric]:
    busy = _gauge(
        "hami_container_device_utilization_ratio",
        "Time in which its kernels ran, as NVML sampled it last, 0 to 1",
        _CONTAINER,
    )
    share = _gauge(
        "vgpu_container_share_ratio",
        "Share of the card's time over the last seconds, 0 to 1",
        _CONTAINER,
    )
    limit = _gauge(
        "vgpu_container_core_limit_ratio",
        "Share of the card's time that the container may use, 1 without a limit",
        _CONTAINER,
    )
    elapsed = _gauge(
        "hami_container_last_kernel_elapsed_seconds",
        "Time since the container launched last",
        _CONTAINER,
    )
    for pod, who, index, uuid, labels in _devices(seen):
        if who[1] in pod.started:
            sampled = [s.utilization_pct for s in _samples(seen, who, uuid)]
            known = [pct for pct in sampled if pct is not None]
            if len(known) == len(sampled):
                busy.add_metric(labels, min(1.0, sum(known) / 100))
            got = share_pct(seen.ticks, who, uuid)
            if got is not None:
                share.add_metric(labels, got / 100)
        counters = seen.counters.get(who)
        if counters is not None and index < len(counters.constant.devices):
            pct = counters.constant.devices[index].sm_limit_pct
            limit.add_metric(labels, pct / 100 if 0 < pct < 100 else 1.0)
        region = seen.regions.get(who)
        if isinstance(region, ContainerRegion) and region.last_kernel_ns:
            past_ns = max(0, seen.now_ns - region.last_kernel_ns)
            elapsed.add_metric(labels, past_ns / _NS_PER_S)
    return busy, share, limit, elapsed


def _counted(seen: Observed) -> Iterable[Metric]:
    launches = _counter("vgpu_launches", "Kernels, graphs, large copies and fills", _CONTAINER)
    granted = _counter(
        "vgpu_granted_seconds", "Device time used, by the library's own reckoning", _CONTAINER
    )
    waited = _counter(
        "vgpu_waited_seconds",
        "Time for which launches were held back, by reason",
        (*_CONTAINER, "reason"),
    )
    denied = _counter("vgpu_allocations_denied", "Allocations that the limit refused", _CONTAINER)
    for _, who, index, _, labels in _devices(seen):
        counters = seen.counters.get(who)
        if counters is None or index >= len(counters.denied):
            continue
        launches.add_metric(labels, float(counters.launches[index]))
        granted.add_metric(labels, counters.granted_ns[index] / _NS_PER_S)
        denied.add_metric(labels, float(counters.denied[index]))
        queue, above = counters.waited_queue_ns[index], counters.waited_priority_ns[index]
        for reason, time_ns in (
            ("budget", max(0, counters.waited_ns[index] - queue - above)),
            ("queue", queue),
            ("priority", above),
        ):
            waited.add_metric((*labels, reason), time_ns / _NS_PER_S)
    return launches, granted, waited, denied


def _degraded(seen: Observed) -> Metric:
    gauge = _gauge(
        "vgpu_container_degraded",
        "1 for a container that is held below its share for want of samples",
        _DEGRADED,
    )
    for pod in seen.pods:
        for container in sorted(pod.promised.keys() & pod.started):
            counters = seen.counters.get((pod.key.uid, container))
            if counters is not None and StateFlag.DEGRADED in counters.state:
                gauge.add_metric((ZONE, pod.key.namespace, pod.key.name, container), 1.0)
    return gauge


def _samples(seen: Observed, who: ContainerId, uuid: str) -> list[Sample]:
    return seen.ticks[-1].of(who, uuid) if seen.ticks else []


def _unenforced(seen: Observed) -> Metric:
    gauge = _gauge(
        "vgpu_container_unenforced", "1 for a container whose limits nothing holds", _UNENFORCED
    )
    for pod, container, reason in unenforced(seen):
        gauge.add_metric((ZONE, pod.key.namespace, pod.key.name, container, reason), 1.0)
    return gauge


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))


def _counter(name: str, text: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=list(labels))


class _Fixed:
    """A collector of families that are already there."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
