"""Parts of the stack go away and come back; pods that wait go on by themselves."""

from __future__ import annotations

from testbed.lab.deploy.common import NAME, PLUGIN
from testbed.lab.wait import wait_until
from testbed.stack import names

from .test_allocation import memory_limit, phase, pod, wait_phase


def allocatable(kube):
    """Return how many cards the first node's kubelet offers."""
    [node] = kube.list("v1", "Node")
    return int(node["status"].get("allocatable", {}).get(names.RESOURCE_COUNT, "0"))


def test_pods_that_were_submitted_while_the_plugin_was_away_run_when_it_is_back(testbed, namespace):
    kube = testbed.kube
    [plugin] = kube.list("v1", "Pod", names.NAMESPACE, labels=f"{NAME}={PLUGIN}")
    name = plugin["metadata"]["name"]
    kube.delete("v1", "Pod", name, names.NAMESPACE, grace_s=0)
    wait_until(
        "the kubelet offers no card",
        lambda: allocatable(kube),
        ready=lambda count: count == 0,
        timeout_s=20,
        interval_s=0.05,
    )
    kube.create(pod(testbed, namespace, "early", 2048))
    found = wait_phase(kube, namespace, "early", ("Running", "Failed"), timeout_s=45)
    assert phase(found) == "Running", found["status"]
    assert memory_limit(kube, namespace, "early") == 2048


def test_a_pod_that_waits_for_room_runs_when_room_is_made(testbed, namespace):
    kube = testbed.kube
    kube.create(pod(testbed, namespace, "first", 60000))
    wait_phase(kube, namespace, "first", ("Running",))
    kube.create(pod(testbed, namespace, "second", 60000))

    def refused():
        found = kube.find("v1", "Pod", "second", namespace) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return [c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]

    wait_until("the second pod is refused", refused, ready=bool, timeout_s=20)
    kube.delete("v1", "Pod", "first", namespace, grace_s=0)
    found = wait_phase(kube, namespace, "second", ("Running", "Failed"), timeout_s=30)
    assert phase(found) == "Running", found["status"]
