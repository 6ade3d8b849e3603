"""Whose promise does a pod get? Always its own, in whatever order things happen."""

from __future__ import annotations

import json
import subprocess

import pytest

from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares

ROUNDS = 20
SHOW = "env | grep -E '^(CUDA_|NVIDIA_)' | sort; cat /etc/ld.so.preload; sleep 300"


def pod(testbed, namespace, name, mib, *, cores=10, scheduler="", command=SHOW):
    """Return a pod that shows the limits that its container was given."""
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "main",
                "image": testbed.info().pytorch_image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", command],
                "resources": {
                    "limits": {
                        names.RESOURCE_COUNT: "1",
                        names.RESOURCE_MEMORY: str(mib),
                        names.RESOURCE_CORES: str(cores),
                    }
                },
            }
        ],
    }
    if scheduler:
        spec["schedulerName"] = scheduler
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def create_in_one_request(testbed, pods):
    """Hand all pods to the API server in one go, as `kubectl create -f` does."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    kubectl = testbed.kube.kubectl_path()
    subprocess.run(
        [str(kubectl), "--kubeconfig", str(testbed.cluster.kubeconfig()), "create", "-f", "-"],
        input=document,
        text=True,
        check=True,
        capture_output=True,
        timeout=30,
    )


def phase(found):
    return (found or {}).get("status", {}).get("phase", "Pending")


def wait_phase(kube, namespace, name, wanted, timeout_s=60):
    """Wait until a pod is in one of the phases; return it."""
    return wait_until(
        f"pod {namespace}/{name} is {'/'.join(wanted)}",
        lambda: kube.find("v1", "Pod", name, namespace),
        ready=lambda found: phase(found) in wanted,
        describe=lambda found: json.dumps((found or {}).get("status", {}))[:600],
        timeout_s=timeout_s,
    )


def memory_limit(kube, namespace, name):
    """Return the cap that the container was told, MiB, once it has printed it."""
    text = wait_until(
        f"{namespace}/{name} has printed its limits",
        lambda: kube.logs(namespace, name),
        ready=lambda log: names.CONTAINER_LIBRARY in log,
        timeout_s=30,
    )
    key = f"{names.ENV_MEMORY_LIMIT}_0="
    line = next(li for li in text.splitlines() if li.startswith(key))
    return int(line.partition("=")[2].removesuffix("m"))


def test_pods_created_together_never_swap_their_caps(testbed, namespace):
    kube = testbed.kube
    for number in range(ROUNDS):
        first, second = ("a", "z") if number % 2 else ("z", "a")
        caps = {f"{first}{number}": 2048 + number, f"{second}{number}": 4096 + number}
        if number % 4 >= 2:
            caps = dict(reversed(caps.items()))
        create_in_one_request(
            testbed, [pod(testbed, namespace, name, mib) for name, mib in caps.items()]
        )
        for name, mib in caps.items():
            found = wait_phase(kube, namespace, name, ("Running", "Failed"))
            assert phase(found) == "Running", found["status"]
            assert memory_limit(kube, namespace, name) == mib
            shares = decode_pod_shares(found["metadata"]["annotations"][names.POD_ALLOCATED])
            assert [s.mem_mib for c in shares for s in c] == [mib]
        for name in caps:
            kube.delete("v1", "Pod", name, namespace, grace_s=0)
            kube.wait_gone("v1", "Pod", name, namespace, timeout_s=30)


def test_a_pod_of_another_scheduler_in_between_is_refused_not_served(testbed, namespace):
    kube = testbed.kube
    create_in_one_request(
        testbed,
        [
            pod(testbed, namespace, "a", 2048),
            pod(testbed, namespace, "other", 9999, scheduler="default-scheduler"),
            pod(testbed, namespace, "b", 4096),
        ],
    )
    for name, mib in (("a", 2048), ("b", 4096)):
        found = wait_phase(kube, namespace, name, ("Running", "Failed"))
        assert phase(found) == "Running", found["status"]
        assert memory_limit(kube, namespace, name) == mib
    refused = wait_phase(kube, namespace, "other", ("Failed", "Running"))
    assert phase(refused) == "Failed"
    assert "other" in refused["status"]["message"]
    assert names.POD_ALLOCATED not in refused["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({names.RESOURCE_MEMORY: "999999"}, ("CardInsufficientMemory",)),
        ({names.RESOURCE_COUNT: "2"}, ("NodeInsufficientDevice",)),
    ],
)
def test_an_impossible_request_stays_pending_with_its_reason(testbed, namespace, changes, words):
    kube = testbed.kube
    manifest = pod(testbed, namespace, "big", 2048)
    manifest["spec"]["containers"][0]["resources"]["limits"].update(changes)
    kube.create(manifest)

    def message():
        found = kube.find("v1", "Pod", "big", namespace) or {}
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return condition.get("message", "")
        return ""

    text = wait_until("the scheduler has given its verdict", message, ready=bool, timeout_s=30)
    assert any(word in text for word in words), text
    assert phase(kube.find("v1", "Pod", "big", namespace)) == "Pending"
