from __future__ import annotations

from collections.abc import Mapping

import pytest

from testbed.errors import DeployError
from testbed.lab.deploy import Sample, cards, container_series, ledger, reservations, unknown_bytes
from testbed.lab.deploy.samples import merge, parse
from tests.unit.deploy.fakes import FakeKube

NS = "vgpu-testbed"


def sample(time: float, pid: int, size: int, **fields: object) -> dict[str, object]:
    return {
        "time": time,
        "uuid": "GPU-a",
        "pid": pid,
        "pod_uid": "u1",
        "namespace": "n",
        "pod": "p",
        "container": "c",
        "bytes": size,
        "utilization_pct": None,
        "busy_ns": None,
        **fields,
    }


def answer(node: str, *samples: dict[str, object], uuid: str = "GPU-a") -> dict[str, object]:
    return {
        "node": node,
        "now": 100.5,
        "source": "emulated",
        "cards": [{"uuid": uuid, "name": "A100", "index": 0, "memory_bytes": 1 << 36}],
        "samples": list(samples),
        "of-the-future": 1,
    }


def monitors(kube: FakeKube, asked: dict[str, Mapping[str, str]]) -> None:
    for node, time in (("n1", 2.0), ("n2", 1.0)):
        kube.add(
            "Pod",
            f"m-{node}",
            NS,
            metadata={"labels": {"app.kubernetes.io/name": "vgpu-monitor"}},
            spec={"nodeName": node},
        )

        def reply(
            query: Mapping[str, str], node: str = node, time: float = time
        ) -> dict[str, object]:
            asked[node] = query
            return answer(node, sample(time, 7, 5), uuid=f"GPU-{node}")

        kube.proxies[(f"m-{node}", 9394, "/v1/cards")] = reply


def test_all_nodes_are_asked_and_merged() -> None:
    kube, asked = FakeKube(), {}
    monitors(kube, asked)
    reading = cards(kube, since=12.25)
    assert asked == {"n1": {"since": "12.25"}, "n2": {"since": "12.25"}}
    assert [(s.node, s.time) for s in reading.samples] == [("n2", 1.0), ("n1", 2.0)]
    assert [(c.node, c.uuid) for c in reading.cards] == [("n1", "GPU-n1"), ("n2", "GPU-n2")]
    assert reading.now == {"n1": 100.5, "n2": 100.5} and reading.source == "emulated"
    cards(kube, since={"n1": 100.5})
    assert asked == {"n1": {"since": "100.5"}, "n2": {"since": "0.0"}}


def test_monitor_that_does_not_answer_is_an_error() -> None:
    kube = FakeKube()
    with pytest.raises(DeployError, match="no monitor runs"):
        cards(kube)
    monitors(kube, {})
    del kube.proxies[("m-n2", 9394, "/v1/cards")]
    with pytest.raises(DeployError, match="monitor of node n2 gives no figures"):
        cards(kube)
    kube.proxies[("m-n2", 9394, "/v1/cards")] = lambda _: b'{"node": "n2"}'
    with pytest.raises(DeployError, match="missing required field `now`"):
        cards(kube)


def test_monitor_that_ends_is_not_asked() -> None:
    kube = FakeKube()
    monitors(kube, {})
    kube.objects[("Pod", NS, "m-n2")]["metadata"]["deletionTimestamp"] = "now"
    assert {c.node for c in cards(kube).cards} == {"n1"}


def test_container_is_the_sum_of_its_processes_at_one_time() -> None:
    found = parse(
        b"""{"node": "n", "now": 1, "source": "nvml", "cards": [], "samples": [
        {"time": 1, "uuid": "a", "pid": 1, "pod_uid": "u", "container": "c", "bytes": 10},
        {"time": 1, "uuid": "a", "pid": 2, "pod_uid": "u", "container": "c", "bytes": 5},
        {"time": 1, "uuid": "b", "pid": 2, "pod_uid": "u", "container": "d", "bytes": 3},
        {"time": 2, "uuid": "a", "pid": 1, "pod_uid": "u", "container": "c", "bytes": 7},
        {"time": 2, "uuid": "a", "pid": 9, "pod_uid": "unknown", "bytes": 100},
        {"time": 2, "uuid": "b", "pid": 8, "pod_uid": "unknown", "bytes": 1},
        {"time": 3, "uuid": "a", "pid": 0, "bytes": 0}]}"""
    )
    samples = merge([found]).samples
    assert container_series(samples, pod_uid="u") == ((1, 18), (2, 7))
    assert container_series(samples, pod_uid="u", container="c") == ((1, 15), (2, 7))
    assert container_series(samples, pod_uid="u", uuid="b") == ((1, 3),)
    assert container_series(samples, pod_uid="v") == ()
    assert unknown_bytes(samples) == 101
    assert unknown_bytes(s for s in samples if s.time < 2) == 0


def test_unknown_bytes_of_two_nodes_are_not_added() -> None:
    one = Sample(time=1, uuid="a", pid=1, pod_uid="unknown", bytes=5, node="n1")
    two = Sample(time=1, uuid="b", pid=1, pod_uid="unknown", bytes=4, node="n2")
    assert unknown_bytes([one, two]) == 5


def test_extenders_books() -> None:
    kube = FakeKube()
    with pytest.raises(DeployError, match="no scheduler runs"):
        ledger(kube)
    labels = {"labels": {"app.kubernetes.io/name": "vgpu-scheduler"}}
    kube.add("Pod", "s", NS, metadata=labels)
    with pytest.raises(DeployError, match="does not answer /debug/ledger"):
        ledger(kube)
    books = {"synced": True, "nodes": {"n1": {"cards": []}}}
    pods = [{"uid": "u1", "devices": "GPU-a,NVIDIA,1,2:;", "name": "p"}]
    kube.proxies[("s", 9395, "/debug/ledger")] = lambda _: {**books, "pods": pods}
    assert ledger(kube) == {**books, "pods": {"u1": "GPU-a,NVIDIA,1,2:;"}}
    kube.proxies[("s", 9395, "/debug/ledger")] = lambda _: {"pods": [{}]}
    with pytest.raises(DeployError, match="cannot be read"):
        ledger(kube)
    kube.proxies[("s", 9395, "/debug/reservations")] = lambda _: {"reservations": []}
    assert reservations(kube) == {"reservations": []}
    kube.proxies[("s", 9395, "/debug/reservations")] = lambda _: b"[]"
    with pytest.raises(DeployError, match="not an object"):
        reservations(kube)


def test_of_two_extenders_the_one_that_leads_is_asked() -> None:
    kube = FakeKube()
    labels = {"labels": {"app.kubernetes.io/name": "vgpu-scheduler"}}
    for name in ("s-1", "s-2"):
        kube.add("Pod", name, NS, metadata=labels)
        kube.proxies[(name, 9395, "/debug/reservations")] = lambda _, n=name: {"by": n}
    assert reservations(kube) == {"by": "s-2"}  # nobody holds the lease yet: any
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    kube.add("Pod", "s-1", NS, metadata=labels, status=ready)
    assert reservations(kube) == {"by": "s-1"}  # the other may have no address yet
    for holder in ("s-1", "s-2"):
        spec = {"holderIdentity": f"{holder}_0a1b-2c"}
        kube.add("Lease", "vgpu-scheduler", NS, spec=spec)
        assert reservations(kube) == {"by": holder}
