"""Memory that is promised beyond the card (deviceMemoryScaling): seen by node, pod and monitor."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from testbed.card import profiles
from testbed.lab.deploy import cards, enforcement, ledger
from testbed.lab.deploy.chosen import Chosen
from testbed.lab.progress import QuietProgress
from testbed.lab.top.gather import gather
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_register
from testbed.units import MIB

from .cases import called
from .places import own_namespace, sample_pod
from .test_allocation import phase, wait_phase

PROBE = (Path(__file__).parent / "container_probe.py").read_text()
SCALING = "deviceConfig.deviceMemoryScaling"
#: Of an A100 80 GB that is some 1,600 MiB more: what does not fit lies in the host's memory.
FACTOR, BEYOND_MIB = 1.02, 800
CONTEXT_MIB = profiles.load("a100-80gb").figures["context_bytes"].value // MIB
QUIET = QuietProgress()


def registered(kube):
    """Return what the node's card promises, MiB."""
    [node] = kube.list("v1", "Node")
    [card] = decode_register(node["metadata"]["annotations"][names.NODE_REGISTER])
    return card.mem_mib


def promised_to_all(kube):
    """Return what the extender has to give of the card, MiB."""
    [node] = ledger(kube)["nodes"].values()
    [card] = node["cards"]
    return card["mem_mib"]["total"]


@pytest.fixture(scope="module")
def scaled(testbed):
    """The testbed while its card promises more than it has; what it promised before."""
    before = registered(testbed.kube)
    try:
        done = called(testbed, "deploy", "--set", f"{SCALING}={FACTOR}")
        assert done.returncode == 0, done.stderr
        assert testbed.chosen().deviceConfig == {"deviceMemoryScaling": FACTOR}
        yield before
    finally:
        done = called(testbed, "deploy", "--set", f"{SCALING}=null")
        assert done.returncode == 0, done.stderr
    assert testbed.chosen() == Chosen()
    assert registered(testbed.kube) == before


@pytest.fixture
def space(testbed):
    """A namespace of the test's own."""
    with own_namespace(testbed.kube) as name:
        yield name


def pod(testbed, namespace, name, cap):
    """Return a pod that takes what it gets of its cap and keeps it."""
    command = ["python3", "-u", "-c", PROBE, "hold", "0", str(10 * cap)]
    limits = {names.RESOURCE_COUNT: 1, names.RESOURCE_MEMORY: cap}
    return sample_pod(testbed, namespace, name, command, limits)


def fact(kube, namespace, name):
    """Return what the pod's program has printed."""
    found = wait_phase(kube, namespace, name, ("Running", "Failed"), 120)
    assert phase(found) == "Running", found["status"]
    text = wait_until(
        f"{name} has printed its fact",
        lambda: kube.logs(namespace, name),
        ready=lambda log: log.endswith("}\n"),
        timeout_s=60,
    )
    return json.loads(text.splitlines()[-1])


def held(kube, namespace):
    """Return what the monitor tells of the namespace's containers: (on the card, outside), MiB."""
    rows = gather(kube, namespace=namespace, span_s=1.0).containers
    return {row.pod: (row.bytes // MIB, (row.swapped_bytes or 0) // MIB) for row in rows}


def counted(kube):
    """Return what the card counts for all processes in the monitor's latest look, bytes."""
    samples = cards(kube, time.time() - 5).samples
    latest = max((sample.time for sample in samples), default=None)
    return None if latest is None else sum(s.bytes for s in samples if s.time == latest)


def test_control_without_scaling_it_finds_no_place(testbed, space):
    # First here: the fixture above lasts to the end of the file.
    kube = testbed.kube
    kube.create(pod(testbed, space, "large", registered(kube) + BEYOND_MIB))

    def refusal():
        found = kube.find("v1", "Pod", "large", space) or {}
        told = found.get("status", {}).get("conditions", [])
        return [each.get("message", "") for each in told if each["type"] == "PodScheduled"]

    [text] = wait_until("the scheduler refuses it", refusal, ready=any, timeout_s=60)
    assert "CardInsufficientMemory" in text


def test_nodes_register_it_and_two_pods_together_hold_more_than_the_card(testbed, scaled, space):
    kube = testbed.kube
    assert registered(kube) == promised_to_all(kube) == math.floor(scaled * FACTOR)
    # One with a part of the card, and then one that the card alone could not hold. In this
    # order: memory fills the card before any of it is managed, and a context needs room there.
    caps = {"small": math.floor(scaled * FACTOR) - scaled - BEYOND_MIB}
    caps["large"] = scaled + BEYOND_MIB
    for name, cap in caps.items():
        kube.create(pod(testbed, space, name, cap))
        found = fact(kube, space, name)
        assert found["env"][names.ENV_OVERSUBSCRIBE] == "true"
        assert found["env"][f"{names.ENV_MEMORY_LIMIT}_0"] == f"{cap}m"
        assert found["before"]["total"] == found["after"]["total"] == cap
        # The cap holds, context included, wherever the memory lies.
        assert found["refused"] == 2
        assert cap - 2 <= found["allocated"] + CONTEXT_MIB <= cap
    shown = wait_until(
        "the monitor shows what lies outside the card",
        lambda: held(kube, space),
        ready=lambda got: got.keys() == caps.keys() and all(
            abs(sum(got[name]) - cap) <= 2 for name, cap in caps.items()
        ),
        timeout_s=30,
    )  # fmt: skip
    assert sum(on for on, _ in shown.values()) <= scaled
    assert sum(out for _, out in shown.values()) >= sum(caps.values()) - scaled - 4


def test_control_without_the_library_the_card_is_no_larger(testbed, scaled, space):
    # A pod that was deleted at once is gone before its processes are.
    wait_until(
        "the card is empty",
        lambda: counted(testbed.kube),
        ready=lambda found: found == 0,
        timeout_s=60,
    )
    with enforcement(testbed.kube, "off", QUIET):
        testbed.kube.create(pod(testbed, space, "plain", scaled + BEYOND_MIB))
        found = fact(testbed.kube, space, "plain")
    assert found["refused"] == 2 and found["allocated"] < scaled
