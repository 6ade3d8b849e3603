"""The text of /metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from testbed.stack.devices import CardReading, Device
from testbed.stack.model import PodKey, Share
from testbed.stack.monitor.metrics import Observed, exposition
from testbed.stack.monitor.pods import MonitoredPod
from testbed.stack.monitor.regions import ContainerRegion, RegionDevice, RegionProblem

POD = MonitoredPod(
    key=PodKey(namespace="ns", name="p", uid="u"),
    runtime_ids={},
    shares={"x": (Share(uuid="GPU-a", mem_mib=10, core_pct=5),)},
    started=frozenset({"x"}),
)
REGION = ContainerRegion(
    devices=(
        RegionDevice(
            uuid="GPU-a", limit_bytes=1000, context_bytes=1, module_bytes=2, buffer_bytes=4
        ),
    ),
    processes=1,
)
SEEN = Observed(
    node="n1",
    devices=[
        Device(uuid="GPU-a", index=0, name="A100", memory_bytes=1),
        Device(uuid="GPU-b", index=1, name="NVIDIA T4", memory_bytes=1),
    ],
    readings={
        "GPU-a": CardReading(uuid="GPU-a", used_bytes=77, utilization_pct=50),
        "GPU-b": CardReading(uuid="GPU-b", error="GPU is lost"),
    },
    pods=[POD],
    regions={("u", "x"): REGION},
    on_card=frozenset({("u", "x")}),
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
    container = {
        "zone": "vGPU",
        "namespace": "ns",
        "pod": "p",
        "container": "x",
        "vdevice_index": "0",
        "device_uuid": "GPU-a",
    }
    assert shown["hami_vgpu_memory_used_bytes"] == [(container, 7)]
    assert shown["hami_vgpu_memory_limit_bytes"] == [(container, 1000)]
    for part, value in (("context", 1), ("module", 2), ("buffer", 4)):
        assert shown[f"hami_vgpu_memory_{part}_bytes"] == [(container, value)]


def test_a_card_that_gives_no_answer_has_no_figures() -> None:
    assert values(SEEN, "vgpu_card_unreadable") == [0, 1]
    assert len(values(SEEN, "hami_host_gpu_memory_used_bytes")) == 1


def test_series_go_with_the_pod() -> None:
    gone = series(replace(SEEN, pods=[]))
    assert not any(name.startswith("hami_vgpu") for name in gone)
    assert "hami_host_gpu_memory_used_bytes" in gone


def test_containers_whose_limits_nothing_holds() -> None:
    assert reasons() == []
    assert reasons(regions={}) == ["no-region"]
    problem = RegionProblem(reason="unreadable-region")
    assert reasons(regions={("u", "x"): problem}) == ["unreadable-region"]
    # The library is there and no process of the container has it, yet the card has one.
    silent = replace(REGION, processes=0)
    assert reasons(regions={("u", "x"): silent}) == ["library-not-loaded"]
    assert reasons(regions={("u", "x"): silent}, on_card=frozenset()) == []
    # Not started yet, or ended: nothing to hold.
    waiting = replace(POD, started=frozenset())
    assert reasons(regions={}, pods=[waiting]) == []
