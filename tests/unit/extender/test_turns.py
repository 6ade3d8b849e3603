"""Turns: one pod of a node at a time, in order, and never taken by another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.stack.extender.turns import TURN_S, Turns


@pytest.fixture
def woken():
    return []


@pytest.fixture
def turns(woken):
    found = Turns()
    found.listen(woken.append)
    return found


def test_a_free_turn_is_granted_at_once_and_again(turns):
    assert turns.ask("n", "a", 0)
    assert turns.ask("n", "a", 1)
    assert turns.holders("n") == ["a"]


def test_others_wait_in_order(turns, woken):
    turns.ask("n", "a", 0)
    assert not turns.ask("n", "b", 0)
    assert not turns.ask("n", "c", 0)
    assert not turns.ask("n", "b", 1)  # asking again does not lose the place
    turns.end("a", 2)
    assert woken == ["b"]
    turns.end("b", 3)
    assert woken == ["b", "c"]


def test_nodes_do_not_wait_for_each_other(turns):
    assert turns.ask("n", "a", 0)
    assert turns.ask("m", "b", 0)


def test_l10_only_the_owner_ends_its_turn(turns, woken):
    turns.ask("n", "a", 0)
    turns.ask("n", "b", 0)
    turns.end("stranger", 1)
    assert turns.holders("n") == ["a"]
    turns.end("b", 1)  # gives up waiting
    assert turns.holders("n") == ["a"]
    assert woken == ["b"]  # so that whoever waits for it learns that it is out


def test_several_found_allocating_must_all_end(turns, woken):
    turns.hold("n", "a", 0)
    turns.hold("n", "b", 0)
    assert not turns.ask("n", "c", 0)
    turns.end("a", 1)
    assert woken == []
    turns.end("b", 1)
    assert woken == ["c"]


def test_time_of_a_turn(turns):
    turns.ask("n", "a", 0)
    turns.hold("n", "a", 10)  # seen by the watch: not a new turn
    assert turns.expired(TURN_S - 0.1) == []
    assert [turn.uid for turn in turns.expired(TURN_S)] == ["a"]
    assert turns.holders("n") == ["a"]  # until somebody ends it
    turns.restart("a", 20)
    assert turns.expired(TURN_S) == []
    turns.end("a", 21)
    turns.restart("a", 22)
    assert turns.holders("n") == []


def test_each_served_container_renews_a_turn(turns):
    turns.ask("n", "a", 0)
    turns.hold("n", "a", 1, "x;y;")
    turns.hold("n", "a", 20, "x;y;")  # an update of something else
    assert turns.expired(TURN_S)
    turns.hold("n", "a", 20, ";y;")
    assert turns.expired(TURN_S + 19) == []
    assert turns.expired(TURN_S + 20)


def test_a_pod_that_moves_leaves_its_old_node(turns, woken):
    turns.ask("n", "a", 0)
    turns.ask("n", "b", 0)
    assert turns.ask("m", "a", 1)
    assert turns.holders("n") == ["b"]
    assert turns.holders("m") == ["a"]


def test_waiter_found_allocating_holds(turns):
    turns.ask("n", "a", 0)
    turns.ask("n", "b", 0)
    turns.hold("n", "b", 1)
    assert turns.holders("n") == ["a", "b"]
    assert turns.waiting("n") == []


def test_nothing_is_left_of_what_has_ended(turns):
    turns.ask("n", "a", 0)
    turns.ask("n", "b", 0)
    turns.end("b", 1)
    turns.end("a", 1)
    assert turns.nodes() == []


@given(st.lists(st.tuples(st.sampled_from("ake"), st.sampled_from("nm"), st.integers(0, 5))))
def test_by_asking_alone_no_two_pods_hold_and_nobody_starves(steps):
    turns = Turns()
    granted = set()
    turns.listen(granted.add)
    asked = []
    for what, node, pod in steps:
        uid = f"{node}{pod}"  # a pod of one node
        if what == "a":
            turns.ask(node, uid, 0)
            asked.append(uid)
        elif what == "e":
            turns.end(uid, 0)
        for name in "nm":
            assert len(turns.holders(name)) <= 1
            assert turns.holders(name) or not turns.waiting(name)
    for name in "nm":
        waiting = turns.waiting(name)
        for holder in turns.holders(name):
            turns.end(holder, 0)
        for expected in waiting:
            assert turns.holders(name) == [expected]
            turns.end(expected, 0)
