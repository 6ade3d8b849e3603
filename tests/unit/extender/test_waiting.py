"""A refusal from books that are a moment old must not make a pod sleep."""

from __future__ import annotations

import asyncio

import pytest

from testbed.errors import ClusterError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import server
from testbed.stack.extender.api import AnswerLost, Unreachable
from testbed.stack.extender.server import Extender
from testbed.stack.extender.state import State
from testbed.stack.extender.waiting import MOST, WINDOW_S, Waiting
from testbed.stack.model import PodKey
from testbed.stack.placement import PodRequest


def key(number):
    return PodKey(namespace="ns", name=f"p{number}", uid=f"uid-{number}")


@pytest.fixture
def told(world):
    """How often the world's state told that room was made while somebody waits."""
    calls = []
    world.state.waiting.listen(lambda: calls.append(1))
    return calls


def full(world):
    """Return a pod that holds the card, and one that was refused because of it."""
    world.node()
    first, second = world.pod("first", mem=60000), world.pod("second", mem=60000)
    assert world.filter(first).NodeNames == ["n1"]
    assert world.filter(second).NodeNames == []
    return first, second


def test_the_end_of_a_pod_wakes_who_was_refused_before(world, told):
    first, second = full(world)
    assert told == []
    world.state.pod_gone(first["metadata"]["uid"])
    assert told == [1]
    [woken] = world.state.waiting.take(world.clock())
    assert woken.uid == second["metadata"]["uid"]
    assert world.state.waiting.take(world.clock()) == []  # once


def test_a_node_that_takes_pods_again_wakes_them(world, told):
    world.node(offered="0")
    world.filter(world.pod())
    world.node()
    assert told == [1]


def test_who_was_placed_or_is_gone_is_not_woken(world, told):
    first, second = full(world)
    world.state.pod_gone(first["metadata"]["uid"])
    assert world.filter(second).NodeNames == ["n1"]
    assert world.state.waiting.take(world.clock()) == []
    third = world.pod("third", mem=60000)
    world.filter(third)
    world.state.pod_gone(third["metadata"]["uid"])
    assert world.state.waiting.take(world.clock()) == []


def test_the_end_of_a_pod_that_held_nothing_wakes_nobody(world, told):
    full(world)
    world.state.pod_gone("somebody else")
    assert told == []


def test_old_refusals_are_the_schedulers_own_business():
    waiting = Waiting()
    waiting.refused(key(1), now=0.0)
    waiting.refused(key(2), now=WINDOW_S)
    assert waiting.take(WINDOW_S + 0.1) == [key(2)]


def test_a_crowd_is_woken_in_the_order_of_its_refusals_and_is_bounded():
    waiting = Waiting()
    for number in range(10 * MOST):
        waiting.refused(key(number), now=number * 0.001)
    assert waiting.take(1.0) == [key(number) for number in range(MOST)]
    late = 100.0
    for number in range(10 * MOST):
        waiting.refused(key(number), now=late + number)
    assert len(waiting.take(late + 10 * MOST)) <= WINDOW_S + 1


class RecordingApi:
    """Takes annotations; fails for one pod."""

    def __init__(self, broken):
        self.broken, self.woken = broken, []

    async def annotate_pod(self, pod, annotations):
        if pod.uid == self.broken:
            raise ClusterError("the pod is gone")
        self.woken.append((pod.uid, annotations))

    async def create_event(self, namespace, event):
        pass


def test_the_extender_annotates_the_waiting_pods_and_goes_on_after_a_failure():
    async def scenario():
        state = State(DeviceConfig(), clock=lambda: 1.0, wall=lambda: 42.0)
        api = RecordingApi(broken="uid-1")
        extender = Extender(state, api, label=True)
        work = asyncio.create_task(extender._wake())
        try:
            for number in (1, 2):
                state.waiting.refused(key(number), 1.0)
            state.waiting.room_made()
            async with asyncio.timeout(60):
                while not api.woken:
                    await asyncio.sleep(0.005)
        finally:
            work.cancel()
        return api.woken

    assert asyncio.run(scenario()) == [("uid-2", {names.POD_ROOM_MADE: "42"})]


@pytest.mark.parametrize("fault", [AnswerLost, Unreachable])
def test_a_pod_whose_wake_up_got_no_answer_is_woken_again(fault, monkeypatch):
    monkeypatch.setattr(server, "_TICK_S", 0.0)

    class Slow(RecordingApi):
        calls = 0

        async def annotate_pod(self, pod, annotations):
            self.calls += 1
            if self.calls <= 2:
                raise fault("PATCH got no answer")
            await super().annotate_pod(pod, annotations)

    async def scenario():
        state = State(DeviceConfig(), clock=lambda: 1.0, wall=lambda: 42.0)
        api = Slow(broken="")
        extender = Extender(state, api, label=True)
        work = asyncio.create_task(extender._wake())
        try:
            for number in (1, 2, 3):
                state.waiting.refused(key(number), 1.0, PodRequest(containers=(), kinds=()))
            state.waiting.forget("uid-3")
            state.waiting.room_made()
            async with asyncio.timeout(60):
                while len(api.woken) < 2:
                    await asyncio.sleep(0.005)
        finally:
            work.cancel()
        return [uid for uid, _ in api.woken]

    assert asyncio.run(scenario()) == ["uid-1", "uid-2"]
