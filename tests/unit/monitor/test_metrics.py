"""The text of /metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed.native.region import RegionConstant, StateFlag
from testbed.native.region import RegionDevice as NativeDevice
from testbed.native.region_watch import Counters
from testbed.stack.devices import CardReading, Device
from testbed.stack.model import PodKey, Share
from testbed.stack.monitor.metrics import Observed, exposition
from testbed.stack.monitor.pods import MonitoredPod
from testbed.stack.monitor.regions import ContainerRegion, RegionDevice, RegionProblem
from testbed.stack.monitor.samples import Sample, Tick
from testbed.units import MIB

POD = MonitoredPod(
    key=PodKey(namespace="ns", name="p", uid="u"),
    runtime_ids={},
    shares={"x": (Share(uuid="GPU-a", mem_mib=10, core_pct=5),)},
    started=frozenset({"x"}),
)
REGION = ContainerRegion(
    devices=(
        RegionDevice(
            uuid="GPU-a",
            limit_bytes=1000,
            limit_pct=5,
            context_bytes=1,
            module_bytes=2,
            buffer_bytes=4,
        ),
    ),
    processes=1,
    pids=frozenset({7}),
    last_kernel_ns=40_000_000_000,
)
COUNTERS = Counters(
    constant=RegionConstant(
        devices=(NativeDevice(uuid="GPU-a", memory_limit_bytes=1000, sm_limit_pct=5),)
    ),
    state=StateFlag(0),
    denied=(3,),
    launches=(1000,),
    granted_ns=(2_000_000_000,),
    waited_ns=(6_000_000_000,),
    waited_queue_ns=(1_000_000_000,),
    waited_priority_ns=(2_000_000_000,),
)


def tick(time: float, busy: int, *pids: int, pct: int | None = 4) -> Tick:
    return Tick(
        time=time,
        samples=tuple(
            Sample(
                uuid="GPU-a",
                pid=pid,
                pod_uid="u",
                container="x",
                bytes=90,
                utilization_pct=pct,
                busy_ns=busy,
            )
            for pid in pids
        ),
    )


SEEN = Observed(
    node="n1",
    devices=[
        Device(uuid="GPU-a", index=0, name="A100", memory_bytes=1),
        Device(uuid="GPU-b", index=1, name="NVIDIA T4", memory_bytes=1),
    ],
    readings={
        "GPU-a": CardReading(
            uuid="GPU-a", used_bytes=77, utilization_pct=50, memory_utilization_pct=25
        ),
        "GPU-b": CardReading(uuid="GPU-b", error="GPU is lost"),
    },
    pods=[POD],
    regions={("u", "x"): REGION},
    now_ns=42_000_000_000,
    process_samples={"GPU-a": True},
    counters={("u", "x"): COUNTERS},
    ticks=[tick(0, 0, 7), tick(5, 250_000_000, 7)],
    alive=frozenset({7}),
)


def series(seen: Observed) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(exposition(seen).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def values(seen: Observed, name: str) -> list[float]:
    return [value for _, value in series(seen).get(name, [])]


def reasons(**change: Any) -> list[str]:
    shown = series(replace(SEEN, **change)).get("vgpu_container_unenforced", [])
    return [labels["reason"] for labels, _ in shown]


def test_names_and_labels_are_hamis() -> None:
    shown = series(SEEN)
    card = {"zone": "vGPU", "node": "n1", "device_index": "0", "device_uuid": "GPU-a"}
    assert shown["hami_host_gpu_memory_used_bytes"] == [
        ({**card, "device_type": "NVIDIA-A100"}, 77)
    ]
    assert [value for _, value in shown["hami_host_gpu_utilization_ratio"]] == [0.5]
    memory = "hami_host_gpu_memory_controller_utilization_ratio"
    assert [value for _, value in shown[memory]] == [0.25]
    for name, value in (
        ("hami_vgpu_memory_used_bytes", 7),
        ("hami_vgpu_memory_limit_bytes", 1000),
        ("hami_vgpu_memory_context_bytes", 1),
        ("hami_vgpu_memory_module_bytes", 2),
        ("hami_vgpu_memory_buffer_bytes", 4),
        ("hami_container_device_memory_bytes", 90),
        ("hami_container_device_utilization_ratio", 0.04),
        ("hami_container_last_kernel_elapsed_seconds", 2),
    ):
        assert shown[name] == [(CONTAINER, value)], name


def test_memory_outside_the_card_is_shown_where_it_is_known() -> None:
    assert values(SEEN, "vgpu_container_swapped_bytes") == []
    counted = replace(SEEN, counted={(("u", "x"), 0): 100})
    assert series(counted)["vgpu_container_swapped_bytes"] == [(CONTAINER, 10)]


CONTAINER = {
    "zone": "vGPU",
    "namespace": "ns",
    "pod": "p",
    "container": "x",
    "vdevice_index": "0",
    "device_uuid": "GPU-a",
}


def test_shares_and_what_the_library_counts() -> None:
    shown = series(SEEN)
    for name, value in (
        ("vgpu_container_share_ratio", 0.05),
        ("vgpu_container_core_limit_ratio", 0.05),
        ("vgpu_launches_total", 1000),
        ("vgpu_granted_seconds_total", 2),
        ("vgpu_allocations_denied_total", 3),
    ):
        assert shown[name] == [(CONTAINER, value)], name
    waited = {labels["reason"]: value for labels, value in shown["vgpu_waited_seconds_total"]}
    assert waited == {"budget": 3, "queue": 1, "priority": 2}
    assert shown["vgpu_build_info"][0][0]["component"] == "monitor"
    assert [value for _, value in shown["vgpu_card_process_samples"]] == [1]


def test_no_limit_is_the_whole_card() -> None:
    (device,) = COUNTERS.constant.devices
    for pct in (0, 100, 250):
        free = replace(
            COUNTERS,
            constant=replace(COUNTERS.constant, devices=(replace(device, sm_limit_pct=pct),)),
        )
        name = "vgpu_container_core_limit_ratio"
        assert values(replace(SEEN, counters={("u", "x"): free}), name) == [1]


def test_what_is_not_known_has_no_series() -> None:
    shown = series(replace(SEEN, ticks=[tick(0, 0, 7, pct=None)], counters={}, regions={}))
    for name in (
        "hami_container_device_utilization_ratio",
        "vgpu_container_share_ratio",
        "vgpu_container_core_limit_ratio",
        "hami_container_last_kernel_elapsed_seconds",
        "vgpu_launches_total",
    ):
        assert name not in shown, name


def test_degraded_containers() -> None:
    assert values(SEEN, "vgpu_container_degraded") == []
    bad = replace(COUNTERS, state=StateFlag.DEGRADED)
    assert values(replace(SEEN, counters={("u", "x"): bad}), "vgpu_container_degraded") == [1]


def test_a_card_that_gives_no_answer_has_no_figures() -> None:
    assert values(SEEN, "vgpu_card_unreadable") == [0, 1]
    assert len(values(SEEN, "hami_host_gpu_memory_used_bytes")) == 1


def test_series_go_with_the_pod() -> None:
    gone = series(replace(SEEN, pods=[]))
    assert not any(name.startswith(("hami_vgpu", "hami_container", "vgpu_la")) for name in gone)
    assert "hami_host_gpu_memory_used_bytes" in gone


def test_memory_that_the_library_does_not_know_of() -> None:
    """The card counts more than was promised: somebody calls the driver past the hooks."""

    def holding(*bytes_: int) -> list[Tick]:
        return [
            Tick(time=n, samples=(replace(tick(0, 0, 7).samples[0], bytes=count),))
            for n, count in enumerate(bytes_)
        ]

    more, slack = 300 * MIB, 100 * MIB
    assert reasons(ticks=holding(more, more)) == ["memory-beyond-library"]
    assert reasons(ticks=holding(slack, slack)) == [], "the driver's own"
    assert reasons(ticks=holding(more)) == reasons(ticks=holding(0, more)) == [], "one look"
    # A first context above a small limit, or a limit lowered below use: it knows of that.
    knows = replace(REGION, devices=(replace(REGION.devices[0], buffer_bytes=more),))
    assert reasons(ticks=holding(more, more), regions={("u", "x"): knows}) == []


@pytest.mark.parametrize(
    ("written", "promised", "reason"),
    [
        ({"limit_bytes": 10 * MIB, "limit_pct": 5}, {}, []),
        ({"limit_bytes": 1, "limit_pct": 1}, {}, []),  # lowered while it runs
        ({"limit_bytes": 10 * MIB + 1}, {}, ["limit-above-promise"]),
        ({"limit_bytes": 0}, {}, ["limit-above-promise"]),  # none
        ({"limit_pct": 6}, {}, ["limit-above-promise"]),
        ({"limit_pct": 0}, {}, ["limit-above-promise"]),
        ({"limit_pct": 0}, {"core_pct": 0}, []),
        ({"limit_pct": 100}, {"core_pct": 100}, []),
        ({"limit_bytes": 0}, {"mem_mib": 0}, []),
    ],
)
def test_a_region_that_allows_more_than_was_promised(
    written: dict[str, int], promised: dict[str, int], reason: list[str]
) -> None:
    region = replace(REGION, devices=(replace(REGION.devices[0], **written),))
    share = msgspec.structs.replace(POD.shares["x"][0], **promised)
    pod = replace(POD, shares={"x": (share,)})
    assert reasons(regions={("u", "x"): region}, pods=[pod]) == reason


def test_containers_whose_limits_nothing_holds() -> None:
    assert reasons() == []
    assert reasons(regions={}) == ["no-region"]
    problem = RegionProblem(reason="unreadable-region")
    assert reasons(regions={("u", "x"): problem}) == ["unreadable-region"]
    # The library is there and no process of the container has it, yet the card has one.
    silent = {("u", "x"): replace(REGION, processes=0, pids=frozenset())}
    assert reasons(regions=silent) == ["library-not-loaded"]
    assert reasons(regions=silent, ticks=[tick(0, 0)]) == [], "nobody is on the card"
    assert reasons(regions=silent, alive=frozenset()) == [], "it has ended since"
    # One process of two got around the library.
    both = [tick(5, 0, 7, 8)]
    assert reasons(ticks=both, alive=frozenset({7, 8})) == ["process-without-library"]
    blind = replace(REGION, pids=None)
    assert reasons(ticks=both, alive=frozenset({7, 8}), regions={("u", "x"): blind}) == []
    # Not started yet, or ended: nothing to hold.
    waiting = replace(POD, started=frozenset())
    assert reasons(regions={}, pods=[waiting]) == []
