"""Bind against an API that answers, refuses, loses answers and dies."""

from __future__ import annotations

import asyncio
import json

import pytest

from testbed.stack import names
from testbed.stack.extender.api import AnswerLost, ApiError, Unreachable
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.handler import binding, took_effect
from testbed.stack.extender.reservations import Stage


class FakeApi:
    """An API server with one collection; ``fault`` says what goes wrong with a Binding."""

    def __init__(self, *pods):
        self.pods = {pod["metadata"]["name"]: json.loads(json.dumps(pod)) for pod in pods}
        self.fault = None
        self.lands = True  # whether a Binding without an answer took effect
        self.readable = True
        self.bindings = []
        self.patches = []
        self.reads = 0

    async def bind(self, sent):
        await asyncio.sleep(0)
        self.bindings.append(sent)
        if self.fault is None or (isinstance(self.fault, AnswerLost) and self.lands):
            self.land(sent)
        if self.fault is not None:
            raise self.fault

    def land(self, sent):
        pod = self.pods[sent["metadata"]["name"]]
        assert pod["metadata"]["uid"] == sent["metadata"]["uid"]
        pod["spec"]["nodeName"] = sent["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(sent["metadata"]["annotations"])

    async def read_pod(self, namespace, name):
        self.reads += 1
        await asyncio.sleep(0)
        if not self.readable:
            raise Unreachable("GET could not be sent")
        return self.pods.get(name)

    async def patch_pod(self, namespace, name, patch):
        await asyncio.sleep(0)
        if not self.readable:
            raise Unreachable("PATCH could not be sent")
        pod = self.pods.get(name)
        if pod is None:
            raise ApiError("PATCH", 404, "not found")
        annotations = pod["metadata"].get("annotations") or {}
        if (
            pod["metadata"]["uid"] != patch[0]["value"]
            or annotations.get(names.POD_BIND_PHASE) != patch[1]["value"]
        ):
            raise ApiError("PATCH", 422, "test failed")
        annotations[names.POD_BIND_PHASE] = patch[2]["value"]
        self.patches.append(name)


class Rig:
    def __init__(self, world, *pods, wait=5.0):
        self.world = world
        self.api = FakeApi(*pods)
        self.events = []
        self.binder = Binder(
            world.state,
            self.api,
            label=True,
            report=lambda pod, reason, text: self.events.append((pod.name, reason, text)),
            turn_wait_s=wait,
            sleep=lambda seconds: asyncio.sleep(0),
        )

    def watch(self, name):
        """Deliver the pod as it now is, as the watch would."""
        self.world.state.pod_changed(json.loads(json.dumps(self.api.pods[name])))

    def finish(self, name, phase=names.PHASE_SUCCESS):
        self.api.pods[name]["metadata"]["annotations"][names.POD_BIND_PHASE] = phase
        self.watch(name)


@pytest.fixture
def reserved(world):
    world.node()
    pod = world.pod(mem=3000, cores=30)
    assert world.filter(pod).NodeNames == ["n1"]
    return pod


async def settle(predicate):
    async with asyncio.timeout(60):
        while not predicate():
            await asyncio.sleep(0)


def test_one_binding_carries_the_whole_promise(world, reserved, args_of):
    rig = Rig(world, reserved)
    assert asyncio.run(rig.binder.bind(args_of(reserved))) == ""
    (sent,) = rig.api.bindings
    devices = "GPU-n1-0,NVIDIA,3000,30:;"
    assert sent == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": reserved["metadata"]["uid"],
            "labels": {"hami.io/vgpu-node": "n1"},
            "annotations": {
                "hami.io/vgpu-node": "n1",
                "hami.io/vgpu-time": "1790000000",
                "hami.io/vgpu-devices-to-allocate": devices,
                "hami.io/vgpu-devices-allocated": devices,
                "hami.io/bind-phase": "allocating",
                "hami.io/bind-time": "1790000000",
            },
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    assert world.used()[0].mem_mib == 3000
    assert len(world.state.reservations) == 0
    assert world.state.turns.holders("n1") == [reserved["metadata"]["uid"]]


def test_label_only_where_the_server_merges_it(world, reserved):
    reservation = world.state.reservations.get(reserved["metadata"]["uid"])
    assert "labels" not in binding(reservation, 1, label=False)["metadata"]
    reservation.node = "n" * 64
    assert "labels" not in binding(reservation, 1, label=True)["metadata"]


def test_other_node_is_refused_and_the_reservation_given_back(world, reserved, args_of):
    rig = Rig(world, reserved)
    assert "n1, not on n2" in asyncio.run(rig.binder.bind(args_of(reserved, "n2")))
    assert rig.api.bindings == []
    assert world.used()[0].slots == 0


def test_after_a_restart_bind_refuses(world, args_of):
    pod = world.pod()
    rig = Rig(world, pod)
    assert "no shares are reserved" in asyncio.run(rig.binder.bind(args_of(pod)))
    assert rig.events[0][:2] == ("p", "BindingFailed")


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_l2_refused_binding_rolls_back(world, reserved, args_of, status):
    rig = Rig(world, reserved)
    rig.api.fault = ApiError("POST binding", status, "no")
    assert f"{status} no" in asyncio.run(rig.binder.bind(args_of(reserved)))
    assert world.used()[0].slots == 0
    assert world.state.turns.nodes() == []
    assert rig.events[0][1] == "BindingFailed"


def test_unreachable_server_rolls_back(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault = Unreachable("POST could not be sent")
    assert asyncio.run(rig.binder.bind(args_of(reserved)))
    assert world.used()[0].slots == 0
    assert world.state.turns.nodes() == []


def test_lost_answer_of_a_binding_that_landed_is_a_success(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault = AnswerLost("POST got no answer")
    assert asyncio.run(rig.binder.bind(args_of(reserved))) == ""
    assert rig.api.reads == 1
    assert world.used()[0].mem_mib == 3000
    assert reserved["metadata"]["uid"] in world.state.bound


def test_lost_answer_of_a_binding_that_has_not_landed_yet_keeps_the_promise(
    world, reserved, args_of
):
    rig = Rig(world, reserved)
    rig.api.fault, rig.api.lands = AnswerLost("POST got no answer"), False
    assert "not bound yet" in asyncio.run(rig.binder.bind(args_of(reserved)))
    assert rig.api.reads > 1  # it might land a moment later
    assert world.used()[0].mem_mib == 3000
    assert world.filter(world.pod("other", mem=81920)).NodeNames == []  # else two would have it
    # The next attempt gets the same, so that it does not matter which Binding arrives.
    world.node("n2")
    before = world.state.reservations.get(reserved["metadata"]["uid"]).shares
    assert world.filter(reserved).NodeNames == ["n1"]
    assert world.state.reservations.get(reserved["metadata"]["uid"]).shares == before
    rig.api.land(rig.api.bindings[0])
    rig.api.fault = ApiError("POST binding", 409, "already assigned")
    assert asyncio.run(rig.binder.bind(args_of(reserved))) == ""
    assert world.used()[0].mem_mib == 3000


def test_promise_without_an_answer_is_given_back_when_no_binding_can_arrive(
    world, reserved, args_of
):
    rig = Rig(world, reserved)
    rig.api.fault, rig.api.lands = AnswerLost("POST got no answer"), False
    asyncio.run(rig.binder.bind(args_of(reserved)))
    world.clock.now += 59.5
    world.state.drop_expired()
    assert world.used()[0].mem_mib == 3000
    world.clock.now += 0.5
    world.state.drop_expired()
    assert world.used()[0].slots == 0
    assert world.state.turns.nodes() == []


def test_promise_without_an_answer_ends_with_its_pod(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault, rig.api.lands = AnswerLost("POST got no answer"), False
    asyncio.run(rig.binder.bind(args_of(reserved)))
    rig.api.fault = ApiError("POST binding", 404, "not found")
    assert world.filter(reserved).NodeNames == ["n1"]
    assert "404" in asyncio.run(rig.binder.bind(args_of(reserved)))
    assert world.used()[0].slots == 0
    assert world.state.turns.nodes() == []


@pytest.mark.parametrize(
    "then", ["another node", "refused", "unreachable", "other turn"], ids=lambda x: x.split()[0]
)
def test_what_fails_after_a_lost_answer_does_not_give_the_promise_away(
    world, reserved, args_of, then
):
    rig = Rig(world, reserved, wait=0)
    uid = reserved["metadata"]["uid"]
    rig.api.fault, rig.api.lands = AnswerLost("POST got no answer"), False
    asyncio.run(rig.binder.bind(args_of(reserved)))
    args = args_of(reserved)
    if then == "another node":
        args = args_of(reserved, "n2")
    elif then == "refused":
        rig.api.fault = ApiError("POST binding", 403, "no")
    elif then == "unreachable":
        rig.api.fault = Unreachable("POST could not be sent")
    else:
        world.state.turns.end(uid, world.clock.now)  # it lasted too long
        world.state.turns.hold("n1", "somebody", world.clock.now)
    assert asyncio.run(rig.binder.bind(args))
    assert world.used()[0].mem_mib == 3000
    assert world.state.turns.waiting("n1") == []
    assert world.filter(reserved).NodeNames == ["n1"]
    rig.api.land(rig.api.bindings[0])
    rig.watch("p")
    assert world.used()[0].mem_mib == 3000
    assert len(world.state.reservations) == 0


def test_node_that_is_not_offered_any_more_waits_for_the_lost_answer(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault, rig.api.lands = AnswerLost("POST got no answer"), False
    asyncio.run(rig.binder.bind(args_of(reserved)))
    world.node("n2")
    assert "may still arrive" in world.filter(reserved, "n2").Error
    world.clock.now += 60
    world.state.drop_expired()
    assert world.filter(reserved, "n2").NodeNames == ["n2"]


def test_lost_answer_and_no_reading_keeps_the_reservation_for_a_while(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault, rig.api.lands = AnswerLost("POST got no answer"), False
    rig.api.readable = False
    assert "cannot be read" in asyncio.run(rig.binder.bind(args_of(reserved)))
    assert world.used()[0].mem_mib == 3000  # it may be bound
    world.clock.now += 60
    world.state.drop_expired()
    assert world.used()[0].slots == 0
    assert world.state.turns.nodes() == []


def test_lost_answer_then_the_watch_shows_it_bound(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault, rig.api.readable = AnswerLost("POST got no answer"), False
    assert asyncio.run(rig.binder.bind(args_of(reserved)))
    rig.watch("p")
    world.clock.now += 3600
    world.state.drop_expired()
    assert world.used()[0].mem_mib == 3000
    assert asyncio.run(rig.binder.bind(args_of(reserved))) == ""  # asked again: it is bound


def test_conflict_with_our_own_binding_is_a_success(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault = ApiError("POST binding", 409, "already assigned")
    uid = reserved["metadata"]["uid"]
    rig.api.land(binding(world.state.reservations.get(uid), 5, label=False))
    assert asyncio.run(rig.binder.bind(args_of(reserved))) == ""
    assert world.used()[0].mem_mib == 3000


def test_conflict_with_somebody_elses_binding_rolls_back(world, reserved, args_of):
    rig = Rig(world, reserved)
    rig.api.fault = ApiError("POST binding", 409, "already assigned")
    rig.api.pods["p"]["spec"]["nodeName"] = "n1"
    assert "already assigned" in asyncio.run(rig.binder.bind(args_of(reserved)))
    assert world.used()[0].slots == 0


def test_second_bind_of_the_same_pod_is_refused_while_the_first_runs(world, reserved, args_of):
    rig = Rig(world, reserved)

    async def both():
        return await asyncio.gather(
            rig.binder.bind(args_of(reserved)), rig.binder.bind(args_of(reserved))
        )

    first, second = asyncio.run(both())
    assert first == ""
    assert "under way" in second
    assert len(rig.api.bindings) == 1
    assert world.used()[0].mem_mib == 3000


def test_filter_during_bind_does_not_touch_the_promise(world, reserved, args_of):
    rig = Rig(world, reserved)
    uid = reserved["metadata"]["uid"]

    async def scene():
        task = asyncio.create_task(rig.binder.bind(args_of(reserved)))
        await asyncio.sleep(0)  # as far as the API call
        before = world.state.reservations.get(uid)
        assert before.stage is Stage.BINDING
        answer = world.filter(reserved)
        assert world.state.reservations.get(uid) is before
        assert await task == ""
        return answer

    assert "under way" in asyncio.run(scene()).Error
    assert world.used()[0].mem_mib == 3000


@pytest.mark.parametrize(
    ("change", "took"),
    [
        ({}, True),
        ({"uid": "another"}, False),
        ({"node": ""}, False),
        ({"node": "n2"}, False),
        ({"devices": "GPU-n1-0,NVIDIA,1,1:;"}, False),
        ({"devices": ""}, False),
    ],
)
def test_a_pod_read_back_is_bound_by_us_only_if_all_agrees(world, reserved, change, took):
    sent = binding(world.state.reservations.get(reserved["metadata"]["uid"]), 1, label=False)
    found = {
        "uid": sent["metadata"]["uid"],
        "node": "n1",
        "devices": sent["metadata"]["annotations"][names.POD_ALLOCATED],
    } | change
    pod = {
        "metadata": {"uid": found["uid"], "annotations": {names.POD_ALLOCATED: found["devices"]}},
        "spec": {"nodeName": found["node"]},
    }
    assert took_effect(pod, sent) is took
    assert took_effect(None, sent) is False


def three(world):
    world.node()
    pods = [world.pod(name) for name in "abc"]
    for pod in pods:
        world.filter(pod)
    return pods


def test_l6_the_next_binding_waits_for_the_outcome_of_the_last(world, args_of):
    pods = three(world)
    rig = Rig(world, *pods)

    async def scene():
        tasks = [asyncio.create_task(rig.binder.bind(args_of(pod))) for pod in pods]
        order = []
        for turn in range(3):
            await settle(lambda turn=turn: len(rig.api.bindings) == turn + 1)
            for _ in range(20):  # nothing more may come by itself
                await asyncio.sleep(0)
            assert len(rig.api.bindings) == turn + 1
            name = rig.api.bindings[-1]["metadata"]["name"]
            order.append(name)
            rig.watch(name)
            rig.finish(name, names.PHASE_SUCCESS if turn else names.PHASE_FAILED)
        assert await asyncio.gather(*tasks) == ["", "", ""]
        return order

    assert asyncio.run(scene()) == ["a", "b", "c"]


@pytest.mark.parametrize("how", ["deleted", "Succeeded", "Failed"])
def test_l8_l9_a_turn_ends_with_its_pod(world, args_of, how):
    pods = three(world)
    rig = Rig(world, *pods)

    async def scene():
        assert await rig.binder.bind(args_of(pods[0])) == ""
        task = asyncio.create_task(rig.binder.bind(args_of(pods[1])))
        await settle(lambda: world.state.turns.waiting("n1"))
        if how == "deleted":
            world.state.pod_gone(pods[0]["metadata"]["uid"])
        else:
            rig.api.pods["a"]["status"] = {"phase": how}
            rig.watch("a")
        assert await task == ""

    asyncio.run(scene())


def test_waiting_too_long_gives_back_the_reservation_and_names_the_holder(world, args_of):
    pods = three(world)
    rig = Rig(world, *pods, wait=0.01)

    async def scene():
        await rig.binder.bind(args_of(pods[0]))
        return await rig.binder.bind(args_of(pods[1]))

    text = asyncio.run(scene())
    assert pods[0]["metadata"]["uid"] in text
    assert world.used()[0].slots == 2  # a is bound, c is reserved
    assert world.state.turns.waiting("n1") == []
    assert world.state.turns.holders("n1") == [pods[0]["metadata"]["uid"]]


def test_deleted_while_it_waits_is_not_bound(world, args_of):
    pods = three(world)
    rig = Rig(world, *pods)

    async def scene():
        await rig.binder.bind(args_of(pods[0]))
        task = asyncio.create_task(rig.binder.bind(args_of(pods[1])))
        await settle(lambda: world.state.turns.waiting("n1"))
        world.state.pod_gone(pods[1]["metadata"]["uid"])
        async with asyncio.timeout(60):
            return await task

    assert "ended while it waited" in asyncio.run(scene())
    assert len(rig.api.bindings) == 1


def test_other_nodes_do_not_wait(world, args_of):
    world.node("n1")
    world.node("n2")
    one, two = world.pod("a"), world.pod("b")
    world.filter(one, "n1")
    world.filter(two, "n2")
    rig = Rig(world, one, two)

    async def scene():
        return await asyncio.gather(
            rig.binder.bind(args_of(one, "n1")), rig.binder.bind(args_of(two, "n2"))
        )

    assert asyncio.run(scene()) == ["", ""]


class TestExpiry:
    def bound(self, world, args_of):
        pods = three(world)
        rig = Rig(world, *pods)
        asyncio.run(rig.binder.bind(args_of(pods[0])))
        rig.watch("a")
        world.clock.now += 30
        return rig, pods

    def test_pod_is_marked_failed_before_the_turn_goes_on(self, world, args_of):
        rig, pods = self.bound(world, args_of)

        async def scene():
            task = asyncio.create_task(rig.binder.bind(args_of(pods[1])))
            await settle(lambda: world.state.turns.waiting("n1"))
            await rig.binder.expire_turns()
            assert rig.api.patches == ["a"]
            assert await task == ""

        asyncio.run(scene())
        annotations = rig.api.pods["a"]["metadata"]["annotations"]
        assert annotations[names.POD_BIND_PHASE] == names.PHASE_FAILED
        assert world.used()[0].slots == 3  # still on the node: it holds what it holds

    def test_nothing_before_its_time(self, world, args_of):
        rig, _ = self.bound(world, args_of)
        world.clock.now -= 0.5
        asyncio.run(rig.binder.expire_turns())
        assert rig.api.patches == []

    def test_server_that_does_not_answer_keeps_the_turn(self, world, args_of):
        rig, pods = self.bound(world, args_of)
        rig.api.readable = False
        asyncio.run(rig.binder.expire_turns())
        assert world.state.turns.holders("n1") == [pods[0]["metadata"]["uid"]]

    def test_patch_that_is_refused_keeps_the_turn(self, world, args_of):
        rig, pods = self.bound(world, args_of)

        async def refuse(namespace, name, patch):
            raise ApiError("PATCH", 403, "no right")

        rig.api.patch_pod = refuse
        asyncio.run(rig.binder.expire_turns())
        assert world.state.turns.holders("n1") == [pods[0]["metadata"]["uid"]]

    def test_success_in_the_last_moment_is_not_overwritten(self, world, args_of):
        rig, _ = self.bound(world, args_of)
        annotations = rig.api.pods["a"]["metadata"]["annotations"]
        annotations[names.POD_BIND_PHASE] = names.PHASE_SUCCESS
        asyncio.run(rig.binder.expire_turns())
        assert annotations[names.POD_BIND_PHASE] == names.PHASE_SUCCESS
        assert world.state.turns.holders("n1") == []

    @pytest.mark.parametrize("gone", [True, False], ids=["deleted", "made anew"])
    def test_pod_that_is_gone(self, world, args_of, gone):
        rig, _ = self.bound(world, args_of)
        if gone:
            del rig.api.pods["a"]
        else:
            rig.api.pods["a"]["metadata"]["uid"] = "another"
        asyncio.run(rig.binder.expire_turns())
        assert rig.api.patches == []
        assert world.state.turns.holders("n1") == []
