from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from testbed.errors import CodecError, DeployError, WaitTimeout
from testbed.lab.deploy import NodeCards, StackImages, StackValues
from testbed.lab.deploy import ready as ready_module
from testbed.lab.deploy.diagnosis import diagnose, hopeless, pod_line, pod_ready
from testbed.lab.deploy.ready import (
    missing_cards,
    node_cards,
    probe_pod,
    rollout,
    wait_cards,
    wait_ledger,
    wait_monitors,
    wait_pods,
    wait_webhook,
)
from testbed.lab.kube import ApiError
from testbed.lab.progress import QuietProgress
from testbed.stack.codec import encode_register
from testbed.stack.model import Card
from tests.unit.deploy.fakes import FakeKube

NS = "vgpu-testbed"
VALUES = StackValues(images=StackImages(base="b:1", kube_scheduler="k:1"))
CARD = Card(uuid="GPU-a", mem_mib=81920, model="NVIDIA A100")
SICK = Card(uuid="GPU-b", index=1, mem_mib=81920, model="NVIDIA A100", healthy=False)
QUIET = QuietProgress()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PODS_S", "WEBHOOK_S", "CARDS_S", "LEDGER_S", "MONITOR_S"):
        monkeypatch.setattr(ready_module, name, 0.0)  # one look


# --- roll-outs -------------------------------------------------------------------
def deployment(**status: int) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": "d", "generation": 2},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 2, **status},
    }


def daemon_set(**status: int) -> dict[str, Any]:
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "d", "generation": 2},
        "spec": {},
        "status": {"observedGeneration": 2, **status},
    }


@pytest.mark.parametrize(
    ("workload", "waiting"),
    [
        (deployment(replicas=1, updatedReplicas=1, readyReplicas=1), ""),
        (deployment(), "0 of 1 ready"),
        # The old pod is still there, ready: the new one is not the only one yet.
        (deployment(replicas=2, updatedReplicas=1, readyReplicas=1), "1 of 1 ready"),
        (deployment(replicas=1, updatedReplicas=0, readyReplicas=1), "0 of the newest"),
        (deployment(observedGeneration=1, replicas=1, updatedReplicas=1, readyReplicas=1), "seen"),
        (daemon_set(desiredNumberScheduled=2, updatedNumberScheduled=2, numberReady=2), ""),
        (daemon_set(desiredNumberScheduled=2, updatedNumberScheduled=2, numberReady=1), "1 of 2"),
        (daemon_set(desiredNumberScheduled=2, updatedNumberScheduled=1, numberReady=2), "1 of the"),
        (daemon_set(), "no node is meant"),
        ({**daemon_set(), "status": {}}, "not seen"),
    ],
)
def test_rollout(workload: dict[str, Any], waiting: str) -> None:
    found = rollout(workload)
    assert waiting in found and bool(found) is bool(waiting)


# --- pods ------------------------------------------------------------------------
def container(name: str = "c", **fields: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, "state": {}, **fields}


def waiting(reason: str, message: str = "", **fields: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return container(state=state, **fields)


def pod(*containers: dict[str, Any], ready: bool = False, **status: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": NS,
            "labels": {"app.kubernetes.io/part-of": "vgpu-testbed"},
        },
        "status": {
            "phase": "Pending",
            "conditions": [condition],
            "containerStatuses": list(containers),
            **status,
        },
    }


def test_ready_pod_that_ends_is_not_ready() -> None:
    found = pod(ready=True)
    assert pod_ready(found)
    found["metadata"]["deletionTimestamp"] = "now"
    assert not pod_ready(found)
    assert not pod_ready({"metadata": {}})


@pytest.mark.parametrize(
    ("status", "is_hopeless"),
    [
        (waiting("ContainerCreating"), False),
        (waiting("ErrImagePull"), False),  # it is tried again
        (waiting("ImagePullBackOff"), True),
        (waiting("ErrImageNeverPull"), True),
        (waiting("InvalidImageName"), True),
        (waiting("CrashLoopBackOff", restartCount=2), False),
        (waiting("CrashLoopBackOff", restartCount=3), True),
        (container(state={"running": {}}, restartCount=9), False),
    ],
)
def test_hopeless(status: dict[str, Any], is_hopeless: bool) -> None:
    assert bool(hopeless([pod(container(ready=True)), pod(status)])) is is_hopeless


def test_pod_line_tells_the_cause() -> None:
    rejected = pod(reason="UnexpectedAdmissionError", message="Allocate failed: no promise")
    assert "UnexpectedAdmissionError: Allocate failed: no promise" in pod_line(rejected)
    unscheduled = pod()
    unscheduled["status"]["conditions"].append(
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes",
        }
    )
    assert "Unschedulable: 0/1 nodes" in pod_line(unscheduled)
    crashed = pod(
        waiting(
            "CrashLoopBackOff",
            "back-off",
            restartCount=4,
            lastState={"terminated": {"reason": "Error", "exitCode": 2}},
        )
    )
    assert "CrashLoopBackOff: back-off, before that Error (exit code 2), 4 restarts" in pod_line(
        crashed
    )


def test_diagnosis_has_states_events_and_logs() -> None:
    kube = FakeKube()
    assert diagnose(kube, NS) == f"no pod exists in namespace {NS}"
    crashed = pod(waiting("CrashLoopBackOff", name="plugin", restartCount=3))
    kube.add("Pod", "p", **{k: crashed[k] for k in ("metadata", "status")}, namespace=NS)
    fine = pod(ready=True)
    fine["metadata"]["name"] = "fine"
    kube.add("Pod", "fine", **{k: fine[k] for k in ("metadata", "status")}, namespace=NS)
    young = pod(waiting("ContainerCreating"))
    young["metadata"]["name"] = "young"
    kube.add("Pod", "young", **{k: young[k] for k in ("metadata", "status")}, namespace=NS)
    kube.log["p/plugin/previous"] = "\n".join(f"line {i}" for i in range(30))
    kube.add(
        "Event",
        "e",
        NS,
        involvedObject={"kind": "Pod", "name": "young"},
        reason="FailedMount",
        message="hostPath type check failed",
    )
    about = {"kind": "Pod", "name": "fine"}
    kube.add("Event", "e2", NS, involvedObject=about, reason="Unhealthy", message="early probe")
    assert "early probe" not in diagnose(kube, NS)
    lines = diagnose(kube, NS).splitlines()
    assert "pod fine: ready" in lines
    assert "    plugin | line 29" in lines and "    plugin | line 19" not in lines
    assert "event Pod/young: FailedMount: hostPath type check failed" in lines


class Unreadable(FakeKube):
    def list(self, *args: Any, **options: Any) -> Any:
        raise ApiError("x", status=403, reason="Forbidden", message="may not list")


def test_diagnosis_never_fails() -> None:
    assert diagnose(Unreadable(), NS) == "(pods cannot be listed: may not list)"
    kube = FakeKube()
    running = pod(container(state={"running": {}}))
    kube.add("Pod", "p", **{k: running[k] for k in ("metadata", "status")}, namespace=NS)

    def refuse(*args: Any, **options: Any) -> str:
        raise ApiError("x", status=500, reason="", message="no log here")

    kube.logs = refuse  # type: ignore[method-assign]
    assert "(no log: no log here)" in diagnose(kube, NS)


def test_wait_pods_fails_early() -> None:
    kube = FakeKube()
    bad = pod(waiting("ImagePullBackOff", "no such image"))
    kube.add("Pod", "p", **{k: bad[k] for k in ("metadata", "status")}, namespace=NS)
    waits = deployment()
    waits["metadata"]["labels"] = {"app.kubernetes.io/part-of": "vgpu-testbed"}
    kube.add("Deployment", "d", NS, **{k: waits[k] for k in ("metadata", "spec", "status")})
    with pytest.raises(DeployError, match="no such image"):
        wait_pods(kube, VALUES, QUIET)
    del kube.objects[("Pod", NS, "p")]
    with pytest.raises(WaitTimeout, match="0 of 1 ready"):
        wait_pods(kube, VALUES, QUIET)
    waits["status"].update(replicas=1, updatedReplicas=1, readyReplicas=1)
    wait_pods(kube, VALUES, QUIET)


# --- webhook ---------------------------------------------------------------------
class Admitting(FakeKube):
    def __init__(self, scheduler: str) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.dry: list[bool] = []

    def create(self, manifest: Any, *, dry_run: bool = False) -> Any:
        self.dry.append(dry_run)
        return {**manifest, "spec": {**manifest["spec"], "schedulerName": self.scheduler}}


def test_webhook_is_believed_only_by_its_effect() -> None:
    seen = Admitting("vgpu-scheduler")
    wait_webhook(seen, VALUES, QUIET)
    assert seen.dry == [True]
    with pytest.raises(WaitTimeout, match="'default-scheduler': the webhook was not asked"):
        wait_webhook(Admitting("default-scheduler"), VALUES, QUIET)


def test_probe_pod_is_one_that_the_webhook_sees() -> None:
    found = probe_pod(VALUES)
    assert found["metadata"]["namespace"] != VALUES.namespace
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "schedulerName" not in found["spec"]


# --- cards -----------------------------------------------------------------------
def node(name: str, cards: Sequence[Card], slots: int | str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "annotations": {"hami.io/node-nvidia-register": encode_register(cards)},
        },
        "status": {"allocatable": {"nvidia.com/gpu": str(slots)}},
    }


def test_node_cards() -> None:
    found = node_cards(node("n1", [CARD, SICK], 10), "nvidia.com/gpu")
    assert found == NodeCards(node="n1", registered=(CARD, SICK), allocatable=10)
    assert found.slots == 10  # a sick card offers none
    bare = {"metadata": {"name": "n2"}}
    assert node_cards(bare, "nvidia.com/gpu") == NodeCards(node="n2", registered=(), allocatable=0)
    bad = {"metadata": {"name": "n3", "annotations": {"hami.io/node-nvidia-register": "[1"}}}
    with pytest.raises(CodecError):
        node_cards(bad, "nvidia.com/gpu")


def test_missing_cards() -> None:
    good = NodeCards(node="n1", registered=(CARD,), allocatable=10)
    empty = NodeCards(node="n2", registered=(), allocatable=0)
    late = NodeCards(node="n1", registered=(CARD,), allocatable=0)
    assert missing_cards([good, empty], None) == ""
    assert missing_cards([empty], None) == "no node has registered a card"
    assert missing_cards([late], None) == "n1: 10 slots registered, kubelet offers 0"
    assert missing_cards([good], {"n1": ["GPU-a"]}) == ""
    assert missing_cards([good], {"n1": ["GPU-a", "GPU-x"]}) == "n1: GPU-x not registered"
    assert missing_cards([good], {"n3": ["GPU-y"]}) == "n3: GPU-y not registered"


def stack(slots: int = 10) -> FakeKube:
    kube = FakeKube()
    found = node("n1", [CARD], slots)
    kube.add("Node", "n1", metadata=found["metadata"], status=found["status"])
    for app in ("plugin", "monitor", "scheduler"):
        labels = {"labels": {"app.kubernetes.io/name": f"vgpu-{app}"}}
        kube.add("Pod", app, NS, metadata=labels, spec={"nodeName": "n1"})
    kube.proxies[("plugin", 9396, "/healthz")] = lambda _: {"enforcement": "on", "generation": 0}
    return kube


def test_wait_cards() -> None:
    (found,) = wait_cards(stack(), VALUES, QUIET, {"n1": ["GPU-a"]})
    assert found.registered == (CARD,)
    with pytest.raises(WaitTimeout, match="kubelet offers 0"):
        wait_cards(stack(slots=0), VALUES, QUIET, None)
    other = stack()
    other.proxies[("plugin", 9396, "/healthz")] = lambda _: {"enforcement": "off", "generation": 3}
    with pytest.raises(DeployError, match="n1: off, generation 3"):
        wait_cards(other, VALUES, QUIET, None)


SHOWN = (NodeCards(node="n1", registered=(CARD,), allocatable=10),)


def test_wait_ledger() -> None:
    kube = stack()

    def books(synced: bool, *uuids: str) -> dict[str, Any]:
        nodes = {"n1": {"cards": [{"uuid": uuid} for uuid in uuids]}}
        return {"synced": synced, "nodes": nodes, "pods": []}

    for answer, why in (
        (books(False, "GPU-a"), "not read the cluster"),
        (books(True), "GPU-a of n1 is not in it"),
    ):
        kube.proxies[("scheduler", 9395, "/debug/ledger")] = lambda _, a=answer: a
        with pytest.raises(WaitTimeout, match=why):
            wait_ledger(kube, VALUES, QUIET, SHOWN)
    kube.proxies[("scheduler", 9395, "/debug/ledger")] = lambda _: books(True, "GPU-a")
    wait_ledger(kube, VALUES, QUIET, SHOWN)


def test_wait_monitors() -> None:
    kube = stack()

    def figures(*, card: bool, sampled: bool) -> dict[str, Any]:
        info = {"uuid": "GPU-a", "name": "A100", "index": 0, "memory_bytes": 1}
        sample = {"time": 1.0, "uuid": "GPU-a", "pid": 0, "bytes": 0}
        return {
            "node": "n1",
            "now": 1.0,
            "source": "emulated",
            "cards": [info] if card else [],
            "samples": [sample] if sampled else [],
        }

    for card, sampled, why in ((False, False, "unknown"), (True, False, "not sampled yet")):
        kube.proxies[("monitor", 9394, "/v1/cards")] = lambda _, c=card, s=sampled: figures(
            card=c, sampled=s
        )
        with pytest.raises(WaitTimeout, match=why):
            wait_monitors(kube, VALUES, QUIET, SHOWN)
    kube.proxies[("monitor", 9394, "/v1/cards")] = lambda _: figures(card=True, sampled=True)
    assert wait_monitors(kube, VALUES, QUIET, SHOWN).source == "emulated"
