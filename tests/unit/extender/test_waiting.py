"""A refusal from books that are a moment old must not make a pod sleep."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from testbed.errors import ClusterError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import server
from testbed.stack.extender.api import AnswerLost, Unreachable
from testbed.stack.extender.handler import fitting
from testbed.stack.extender.reservations import QUEUED_S
from testbed.stack.extender.server import Extender
from testbed.stack.extender.state import State
from testbed.stack.extender.waiting import LOOKED_AT, MOST, WINDOW_S, Waiting
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


def quota(hard, **status):
    return {
        "metadata": {"namespace": "ns", "name": "q"},
        "spec": {"hard": {f"limits.{names.RESOURCE_MEMORY}": hard}},
        "status": status,
    }


def woken(world):
    found = world.state.waiting.take(world.clock(), fitting(world.state))
    return [pod.name for pod in found]


def test_a_quota_that_is_raised_wakes_however_old_the_refusal_is(world, told):
    world.node()
    world.state.quota_changed(quota("1000"))
    for name, mem in (("fits", 2000), ("too-large", 5000)):
        assert world.filter(world.pod(name, mem=mem)).NodeNames == []
    world.clock.now += 100 * WINDOW_S
    world.state.quota_changed(quota("1000", used={"pods": "7"}))  # Kubernetes' own count
    assert told == []
    world.state.quota_changed(quota("4000"))
    assert told == [1]
    assert woken(world) == ["fits"]
    assert woken(world) == []  # once
    world.state.quota_gone("ns/q")
    assert sorted(woken(world)) == ["fits", "too-large"]


def test_what_expires_wakes_who_fits_now_and_nobody_else(world, told):
    first, _ = full(world)
    assert world.filter(world.pod("third", mem=81920)).NodeNames == []
    world.clock.now += QUEUED_S  # long after both were refused
    world.state.pod_changed(
        {**first, "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
    )
    world.filter(world.pod("fourth", mem=1000))  # takes what the third one needs
    world.clock.now += QUEUED_S
    assert [r.pod.name for r in world.state.drop_expired()] == ["first"]
    assert told
    assert woken(world) == ["second"]


def test_of_many_that_wait_some_are_looked_at_at_a_time_and_all_in_the_end():
    waiting = Waiting()
    for number in range(3 * LOOKED_AT):
        waiting.refused(key(number), 0.0, PodRequest(containers=(), kinds=()))
    waiting.room_made(unheard=True)
    last, rounds = 3 * LOOKED_AT - 1, 0
    found = []
    while waiting.more:
        rounds += 1
        found += waiting.take(100.0, lambda refusal: refusal.pod == key(last))
    assert (found, rounds) == ([key(last)], 3)
    waiting.room_made(unheard=True)
    assert len(waiting.take(100.0, lambda _: True)) == MOST
    assert waiting.more


def asleep(name, scheduler=names.SCHEDULER_NAME, status="False"):
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c"}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": status}]},
    }


def test_pods_that_an_earlier_process_refused_are_woken_once():
    state = State(DeviceConfig(), clock=lambda: 1.0)
    calls = []
    state.waiting.listen(lambda: calls.append(1))
    for number in range(MOST + 1):
        state.pod_changed(asleep(f"p{number}"))
    state.pod_changed(asleep("other", scheduler="other"))
    state.pod_changed(asleep("tried-now", status="Unknown"))
    state.pod_changed(asleep("gone"))
    state.pod_gone("uid-gone")
    state.nodes_synced = state.pods_synced = True
    state.pod_changed(asleep("refused-by-us"))
    state.waiting.room_made(unheard=True)
    assert calls and state.waiting.more
    first = state.waiting.take(1.0)
    assert [pod.name for pod in first] == [f"p{number}" for number in range(MOST)]
    assert [pod.name for pod in state.waiting.take(1.0)] == [f"p{MOST}"]
    assert not state.waiting.more and state.waiting.take(1.0) == []


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


@contextlib.asynccontextmanager
async def waking(api):
    """The state of an extender that wakes pods by this API server, and a wait for so many."""
    state = State(DeviceConfig(), clock=lambda: 1.0, wall=lambda: 42.0)
    work = asyncio.create_task(Extender(state, api, label=True)._wake())

    async def woken(count):
        async with asyncio.timeout(60):
            while len(api.woken) < count:
                await asyncio.sleep(0.005)

    try:
        yield state, woken
    finally:
        work.cancel()


def test_the_extender_annotates_the_waiting_pods_and_goes_on_after_a_failure():
    async def scenario():
        api = RecordingApi(broken="uid-1")
        async with waking(api) as (state, woken):
            for number in (1, 2):
                state.waiting.refused(key(number), 1.0)
            state.waiting.room_made()
            await woken(1)
        return api.woken

    [(uid, stamp)] = asyncio.run(scenario())
    assert uid == "uid-2"
    assert stamp[names.POD_ROOM_MADE].startswith("42.")


def test_woken_twice_in_a_second_a_pod_is_changed_twice():
    # An equal value is no update, and kube-scheduler would let the pod sleep.
    async def scenario():
        api = RecordingApi(broken="")
        async with waking(api) as (state, woken):
            for wanted in (1, 2):
                state.waiting.refused(key(1), 1.0)
                state.waiting.room_made()
                await woken(wanted)
        return [stamp[names.POD_ROOM_MADE] for _, stamp in api.woken]

    assert len(set(asyncio.run(scenario()))) == 2


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
        api = Slow(broken="")
        async with waking(api) as (state, woken):
            for number in (1, 2, 3):
                state.waiting.refused(key(number), 1.0, PodRequest(containers=(), kinds=()))
            state.waiting.forget("uid-3")
            state.waiting.room_made()
            await woken(2)
        return [uid for uid, _ in api.woken]

    assert asyncio.run(scenario()) == ["uid-1", "uid-2"]
