"""Parts of the stack go away and come back; pods that wait go on by themselves."""

from __future__ import annotations

from testbed.lab.deploy.common import PLUGIN
from testbed.lab.wait import wait_until
from testbed.stack import names

from .test_allocation import memory_limit, phase, pod, wait_phase


def allocatable(kube):
    """Return how many cards the first node's kubelet offers."""
    [node] = kube.list("v1", "Node")
    return int(node["status"].get("allocatable", {}).get(names.RESOURCE_COUNT, "0"))


def place_plugin(kube, selector):
    """Move the plugin: to nodes that carry these labels, None for each taken away."""
    body = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
    kube.patch("apps/v1", "DaemonSet", PLUGIN, body, names.NAMESPACE)


def verdict(kube, namespace, name):
    """Return what the scheduler says of a pod that it could not place."""
    found = kube.find("v1", "Pod", name, namespace) or {}
    return "".join(
        condition.get("message", "")
        for condition in found.get("status", {}).get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    )


def test_pods_that_were_submitted_while_the_plugin_was_away_run_when_it_is_back(testbed, namespace):
    kube = testbed.kube
    place_plugin(kube, {"vgpu-testbed.dev/nowhere": "true"})
    try:
        wait_until(
            "the kubelet offers no card",
            lambda: allocatable(kube),
            ready=lambda count: count == 0,
            timeout_s=180,
        )
        kube.create(pod(testbed, namespace, "early", 2048))
        wait_until(
            "the pod is refused for want of a card that works",
            lambda: verdict(kube, namespace, "early"),
            ready=lambda text: "CardNotHealth" in text,
            timeout_s=120,
        )
    finally:
        place_plugin(kube, {"vgpu-testbed.dev/nowhere": None})
    found = wait_phase(kube, namespace, "early", ("Running", "Failed"))
    assert phase(found) == "Running", found["status"]
    assert memory_limit(kube, namespace, "early") == 2048


def test_a_pod_that_waits_for_room_runs_when_room_is_made(testbed, namespace):
    kube = testbed.kube
    kube.create(pod(testbed, namespace, "first", 60000))
    wait_phase(kube, namespace, "first", ("Running",))
    kube.create(pod(testbed, namespace, "second", 60000))

    wait_until(
        "the second pod is refused",
        lambda: verdict(kube, namespace, "second"),
        ready=bool,
        timeout_s=120,
    )
    kube.delete("v1", "Pod", "first", namespace, grace_s=0)
    found = wait_phase(kube, namespace, "second", ("Running", "Failed"))
    assert phase(found) == "Running", found["status"]
