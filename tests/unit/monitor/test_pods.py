"""The pods of the node, folded from list and watch."""

from __future__ import annotations

from typing import Any

from testbed.stack import names
from testbed.stack.model import Share
from testbed.stack.monitor.pods import PodIndex, monitored_pod


def raw(
    name: str, *, phase: str = "Running", text: str = ";GPU-a,NVIDIA,10,5:;;"
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "annotations": {names.POD_ALLOCATED: text},
        },
        "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "x"}, {"name": "y"}]},
        "status": {
            "phase": phase,
            "initContainerStatuses": [{"name": "i", "containerID": "containerd://11"}],
            "containerStatuses": [
                {"name": "x", "containerID": "containerd://22", "state": {"running": {}}},
                {"name": "y", "state": {"waiting": {}}},
            ],
        },
    }


def test_pod() -> None:
    pod = monitored_pod(raw("p"))
    assert pod.shares == {"x": (Share(uuid="GPU-a", mem_mib=10, core_pct=5),)}
    assert pod.runtime_ids == {"11": "i", "22": "x"}
    assert pod.started == {"x"} and not pod.finished


def test_init_containers_have_no_series() -> None:
    assert monitored_pod(raw("p", text="GPU-a,NVIDIA,10,5:;;;")).shares == {}


def test_unreadable_annotation_is_no_shares() -> None:
    assert monitored_pod(raw("p", text="rubbish")).shares == {}


def test_fold() -> None:
    now = [0.0]
    index = PodIndex(keep_s=60, clock=lambda: now[0])
    assert not index.synced and index.alive() == ()
    index.replace([raw("a"), raw("b")])
    assert index.synced and [p.key.name for p in index.alive()] == ["a", "b"]
    assert index.container_name("u-a", "22") == "x"
    assert index.container_name("u-a", "33") == "" == index.container_name("u-z", "22")
    index.apply("MODIFIED", raw("a", phase="Succeeded"))
    assert [p.key.name for p in index.alive()] == ["b"], "completed: no series"
    index.apply("ADDED", raw("c"))
    index.apply("DELETED", raw("b"))
    assert [p.key.name for p in index.alive()] == ["c"]
    # Samples of a pod that has gone still bear its name, for as long as they are kept.
    key = index.key("u-b")
    assert key is not None and key.name == "b"
    now[0] = 61
    index.replace([])
    assert index.key("u-b") is None
    assert index.key("u-c") is not None and index.alive() == ()
