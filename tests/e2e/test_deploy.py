"""The stack on a cluster with a kubelet: deployed again, switched, its own doubles."""

from __future__ import annotations

import time

import pytest

from testbed.errors import CheckFailed
from testbed.lab.deploy import cards, enforcement, ledger, plugin_states, set_enforcement
from testbed.lab.progress import QuietProgress
from testbed.stack import names
from testbed.stack.codec import decode_register

QUIET = QuietProgress()


def stack_pods(testbed):
    """Return the uids of the stack's pods."""
    found = testbed.kube.list("v1", "Pod", names.NAMESPACE)
    return {pod["metadata"]["uid"] for pod in found if "deletionTimestamp" not in pod["metadata"]}


def test_second_deployment_rolls_nothing(testbed):
    before, states = stack_pods(testbed), plugin_states(testbed.kube)
    testbed.deploy(QUIET)
    assert stack_pods(testbed) == before
    assert plugin_states(testbed.kube) == states


def test_switch_is_followed_and_undone(testbed):
    before = stack_pods(testbed)
    (start,) = plugin_states(testbed.kube)
    assert start.enforcement == "on"
    with pytest.raises(CheckFailed), enforcement(testbed.kube, "off", QUIET) as generation:
        (state,) = plugin_states(testbed.kube)
        assert (state.enforcement, state.generation) == ("off", generation)
        raise CheckFailed("of a control run")
    (end,) = plugin_states(testbed.kube)
    assert (end.enforcement, end.generation) == ("on", start.generation + 2)
    assert stack_pods(testbed) == before


def test_deployment_repairs_an_interrupted_control_run(testbed):
    set_enforcement(testbed.kube, "off", QUIET)
    testbed.deploy(QUIET)
    (state,) = plugin_states(testbed.kube)
    assert state.enforcement == "on"


def test_node_ledger_and_monitor_know_the_same_cards(testbed):
    registered = {
        (node["metadata"]["name"], card.uuid)
        for node in testbed.kube.list("v1", "Node")
        for card in decode_register(node["metadata"]["annotations"][names.NODE_REGISTER])
    }
    books = ledger(testbed.kube)
    assert {
        (node, card["uuid"]) for node, found in books["nodes"].items() for card in found["cards"]
    } == registered
    reading = cards(testbed.kube)
    assert {(card.node, card.uuid) for card in reading.cards} == registered
    assert registered


def test_readings_join_without_gap_or_repeat(testbed):
    first = cards(testbed.kube, since=time.time() - 2)
    second = cards(testbed.kube, since=first.now)
    times = [s.time for s in (*first.samples, *second.samples)]
    assert times == sorted(times) and len(set(times)) == len(times)
