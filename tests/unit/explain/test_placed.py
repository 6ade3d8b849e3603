"""What a placed pod asked, gets and waits for; and how a pod is found."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.lab.explain import explain, text
from testbed.lab.explain.gather import find_pod
from testbed.units import MIB

from .conftest import limits, pod

RUNNING = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
}


def device(**fields):
    return {
        "uuid": "GPU-0123456789abcdef",
        "number": 0,
        "asked": {"bytes": 40_000 * MIB, "core_pct": 50},
        "got": {"bytes": 12_345 * MIB, "processes": 1, "share_pct": 48.76},
        "waited": 0.51,
        "waited_for": {"budget": 0.5, "queue": 0.01, "priority": 0.0},
        **fields,
    }


def container(*devices, uid="uid-p", **fields):
    return {
        "pod_uid": uid, "container": "main", "flags": [], "unenforced": None,
        "devices": list(devices), **fields,
    }  # fmt: skip


def running(world, **fields):
    subject = pod("p", node="n1", limits=limits(mem=40_000, cores=50), status=RUNNING)
    return explain(world(n1=[{}]).facts(subject, **fields))


def test_a_running_pod_s_figures(world):
    found = running(world, containers=[container(device()), container(device(), uid="other")])
    assert (found.state, found.says) == ("running", "runs on n1")
    assert len(found.containers) == 1
    shown = text(found)
    row = next(line for line in shown.splitlines() if line.startswith("main"))
    for part in (
        "12,345 MiB",
        "40,000 MiB",
        "48.8 %",
        "50 %",
        "51 % of its time",
        "its share, its work in flight",
    ):
        assert part in row


def test_a_policy_that_is_not_the_default_is_named(world):
    shown = text(running(world, containers=[container(device(), policy="force")]))
    assert "50 % (force)" in shown
    assert "(default)" not in text(
        running(world, containers=[container(device(), policy="default")])
    )


def test_flags_are_in_the_answer(world):
    found = running(world, containers=[container(device(), flags=["degraded", "paused"])])
    assert found.says == "runs on n1 (degraded, paused)"


def test_what_nobody_knows_is_a_dash(world):
    bare = device(got={"bytes": 0, "share_pct": None}, waited=None, waited_for={})
    bare["asked"]["core_pct"] = 0
    row = text(running(world, containers=[container(bare)])).splitlines()[-1]
    assert row.split()[-5:] == ["no", "limit", "-", "-", "-"]


def test_a_monitor_that_is_silent(world):
    found = running(world, containers=None)
    assert found.says == "runs on n1"
    assert found.notes == ("the monitor does not tell what it gets",)


def test_an_image_that_is_not_on_the_node_is_named_with_those_that_are(world):
    facts = world(n1=[{}])
    facts.nodes["n1"]["status"]["images"] = [
        {"names": ["docker.io/testbed/pytorch:local", "docker.io/testbed/pytorch@sha256:00"]}
    ]
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    subject = pod("p", node="n1", status={"containerStatuses": [waiting]})
    subject["spec"]["containers"][0]["image"] = "testbed/pytorch"
    assert explain(facts.facts(subject)).notes == (
        "testbed/pytorch:latest is not on n1 and is pulled from its registry; "
        "there are testbed/pytorch:local",
    )
    subject["spec"]["containers"][0]["image"] = "testbed/pytorch:local"
    assert explain(facts.facts(subject)).notes == ()
    subject["spec"]["containers"][0]["image"] = "registry:5000/x"
    assert explain(facts.facts(subject)).notes[0].startswith("registry:5000/x:latest is not on n1")


def test_a_pod_that_starts(world):
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "x"}}}
    subject = pod("p", node="n1", status={"containerStatuses": [waiting]})
    found = explain(world(n1=[{}]).facts(subject))
    assert found.state == "starting"
    assert "ImagePullBackOff" in found.says
    subject["metadata"]["annotations"] = {"hami.io/bind-phase": "failed"}
    assert "could not be handed out" in explain(world(n1=[{}]).facts(subject)).says


def test_a_pod_that_has_ended(world):
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no turn"}
    found = explain(world(n1=[{}]).facts(pod("p", node="n1", status=status)))
    assert found.state == "ended"
    assert found.says == "has ended (Failed): UnexpectedAdmissionError: no turn"


PODS = [pod("a"), pod("a", namespace="other"), pod("worker", namespace="other")]


@pytest.mark.parametrize(
    ("word", "namespace", "found"),
    [("worker", "", PODS[2]), ("other/a", "", PODS[1]), ("a", "default", PODS[0])],
)
def test_a_pod_by_name(word, namespace, found):
    assert find_pod(PODS, word, namespace) is found


@pytest.mark.parametrize(
    ("word", "namespace", "why"),
    [
        ("a", "", "several namespaces"),
        ("workr", "other", "did you mean worker"),
        ("other/workr", "", "did you mean worker"),
        ("x", "nowhere", "none at all"),
    ],
)
def test_a_pod_that_there_is_not(word, namespace, why):
    with pytest.raises(InputError, match=why):
        find_pod(PODS, word, namespace)
