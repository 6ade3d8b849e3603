"""Whose promise does a pod get? Always its own, in whatever order things happen."""

from __future__ import annotations

import json
import subprocess

import pytest

from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares

from .places import GONE_S, sample_pod

ROUNDS = 20
SHOW = "env | grep -E '^(CUDA_|NVIDIA_)' | sort; cat /etc/ld.so.preload; sleep 3600"


def pod(testbed, namespace, name, mib, *, cores=10, scheduler="", command=SHOW):
    """Return a pod that shows the limits that its container was given."""
    limits = {
        names.RESOURCE_COUNT: 1,
        names.RESOURCE_MEMORY: mib,
        names.RESOURCE_CORES: cores,
    }
    spec = {"schedulerName": scheduler} if scheduler else {}
    return sample_pod(testbed, namespace, name, ["sh", "-c", command], limits, **spec)


def kubectl(testbed, *arguments, stdin=""):
    """Call kubectl as the administrator."""
    done = subprocess.run(
        [
            str(testbed.kube.kubectl_path()),
            "--kubeconfig",
            str(testbed.cluster.kubeconfig()),
            *arguments,
        ],
        input=stdin,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def create_in_one_request(testbed, pods):
    """Hand all pods over in one go."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    kubectl(testbed, "create", "-f", "-", stdin=document)


def bind_as_another_scheduler(testbed, namespace, name, node):
    """Do what any scheduler may do: bind a pod without asking our extender."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    kubectl(testbed, "create", "--raw", path, "-f", "-", stdin=json.dumps(binding))


def phase(found):
    return (found or {}).get("status", {}).get("phase", "Pending")


def wait_phase(kube, namespace, name, wanted, timeout_s=180):
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
        timeout_s=120,
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
            kube.wait_gone("v1", "Pod", name, namespace, timeout_s=GONE_S)


@pytest.mark.parametrize("order", [("other", "a", "b"), ("a", "other", "b"), ("a", "b", "other")])
def test_a_pod_of_another_scheduler_in_between_is_refused_not_served(testbed, namespace, order):
    kube = testbed.kube
    node = testbed.cluster.status().nodes[0].name
    caps = {"a": 2048, "b": 4096}
    for name in order:
        if name == "other":
            kube.create(pod(testbed, namespace, name, 3072, scheduler="somebody-elses"))
            bind_as_another_scheduler(testbed, namespace, name, node)
        else:
            kube.create(pod(testbed, namespace, name, caps[name]))
    for name, mib in caps.items():
        found = wait_phase(kube, namespace, name, ("Running", "Failed"))
        assert phase(found) == "Running", found["status"]
        assert memory_limit(kube, namespace, name) == mib
    refused = wait_phase(kube, namespace, "other", ("Failed", "Running"))
    assert phase(refused) == "Failed"
    assert "Allocate failed" in refused["status"]["message"]
    assert f"{namespace}/other" in refused["status"]["message"]
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

    text = wait_until("the scheduler has given its verdict", message, ready=bool, timeout_s=120)
    assert any(word in text for word in words), text
    assert phase(kube.find("v1", "Pod", "big", namespace)) == "Pending"
