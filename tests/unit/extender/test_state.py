"""What watch events do to the state: pods come, go, end and come back."""

from __future__ import annotations

import pytest

from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.extender.state import State

DEVICES = "GPU-n1-0,NVIDIA,3000,30:;"


def restarted(world):
    """The same world after a restart of the extender: an empty state."""
    world.state = State(DeviceConfig(), clock=world.clock)
    world.state.nodes_synced = world.state.pods_synced = True
    return world


def unschedulable(pod):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {**pod, "status": {"phase": "Pending", "conditions": [condition]}}


def test_l3_deleted_between_filter_and_bind(world):
    world.node()
    pod = world.pod()
    world.filter(pod)
    world.state.pod_gone(pod["metadata"]["uid"])
    assert world.used()[0].slots == 0
    assert len(world.state.reservations) == 0


def test_l3_deleted_while_the_extender_was_down(world):
    world.node()
    restarted(world).node()
    # The list after the restart lacks the pod: nothing is there to leak.
    assert world.used()[0].slots == 0


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pods_hold_nothing(world, phase):
    world.node()
    pod = world.bound(world.pod(mem=3000, cores=30), "n1", DEVICES)
    world.state.pod_changed(pod)
    assert world.used()[0].mem_mib == 3000
    world.state.pod_changed({**pod, "status": {"phase": phase}})
    assert world.used()[0].mem_mib == 0
    assert world.state.turns.holders("n1") == []  # L9


def test_l12_update_then_delete_frees_once(world):
    world.node()
    other = world.bound(world.pod("other", mem=500), "n1", "GPU-n1-0,NVIDIA,500,0:;")
    pod = world.bound(world.pod(mem=3000, cores=30), "n1", DEVICES)
    world.state.pod_changed(other)
    world.state.pod_changed(pod)
    world.state.pod_changed({**pod, "status": {"phase": "Succeeded"}})
    world.state.pod_gone(pod["metadata"]["uid"])
    world.state.pod_gone(pod["metadata"]["uid"])
    assert world.used()[0].mem_mib == 500


def test_r10_after_a_restart_each_pod_counts_once(world):
    pod = world.bound(world.pod(mem=3000, cores=30), "n1", DEVICES, names.PHASE_SUCCESS)
    restarted(world)
    world.state.pod_changed(pod)  # before its node is known
    world.node()
    world.state.pod_changed(pod)
    world.state.pod_changed(pod)
    charge = world.used()[0]
    assert (charge.slots, charge.mem_mib, charge.core_pct) == (1, 3000, 30)


def test_restart_rebuilds_turns_from_allocating_pods(world):
    world.node()
    allocating = world.bound(world.pod("a"), "n1", "GPU-n1-0,NVIDIA,1000,0:;")
    done = world.bound(world.pod("b"), "n1", "GPU-n1-0,NVIDIA,1000,0:;", phase=names.PHASE_SUCCESS)
    restarted(world)
    world.state.pod_changed(allocating)
    world.state.pod_changed(done)
    assert world.state.turns.holders("n1") == [allocating["metadata"]["uid"]]


def test_r12_bad_or_foreign_annotations_are_ignored(world, caplog):
    world.node()
    for devices in ("nonsense", "a,b,c,d:;", "GPU-n1-0,NVIDIA,-5,0:;", ";;;GPU-x,NVIDIA,1,1:;"):
        world.state.pod_changed(world.bound(world.pod(), "n1", devices))
    gone = world.bound(world.pod("gone"), "n1", "GPU-gone,NVIDIA,5,5:;")
    world.state.pod_changed(gone)
    assert world.used()[0].slots == 0
    assert "GPU-gone" in caplog.text
    assert world.filter(world.pod("next")).NodeNames == ["n1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod["spec"].update(schedulerName="other"),
        lambda pod: pod["metadata"]["annotations"].update({names.POD_NODE: "n2"}),
        lambda pod: pod["spec"]["containers"][0]["resources"].clear(),
    ],
    ids=["other scheduler", "other node", "asks for no card"],
)
def test_w2_what_others_wrote_counts_nowhere(world, change):
    world.node()
    pod = world.bound(world.pod(mem=3000, cores=30), "n1", DEVICES)
    change(pod)
    world.state.pod_changed(pod)
    assert world.used()[0].slots == 0
    assert world.state.turns.holders("n1") == []


def test_what_a_pods_owner_writes_later_changes_nothing(world):
    world.node()
    pod = world.bound(world.pod(mem=3000, cores=30), "n1", DEVICES)
    world.state.pod_changed(pod)
    pod["metadata"]["annotations"][names.POD_ALLOCATED] = "GPU-n1-0,NVIDIA,80000,100:;"
    world.state.pod_changed(pod)
    assert world.used()[0].mem_mib == 3000


def test_bound_elsewhere_ends_the_reservation(world):
    world.node("n1")
    world.node("n2")
    pod = world.pod(mem=3000)
    world.filter(pod, "n1")
    world.state.pod_changed(world.bound(pod, "n2", "GPU-n2-0,NVIDIA,3000,0:;"))
    assert world.used("n1")[0].mem_mib == 0
    assert world.used("n2")[0].mem_mib == 3000


def test_bound_by_hand_without_a_promise_holds_nothing(world):
    world.node()
    pod = world.pod(mem=3000)
    world.filter(pod)
    pod["spec"]["nodeName"] = "n1"
    world.state.pod_changed(pod)
    assert world.used()[0].mem_mib == 0
    assert len(world.state.reservations) == 0


def test_event_that_is_older_than_the_promise_changes_nothing(world):
    world.node()
    pod = world.pod(mem=3000)
    world.filter(pod)
    world.state.pod_changed(pod)
    assert world.used()[0].mem_mib == 3000


def test_c1_usage_shrinks_when_the_init_containers_are_through(world):
    world.node()
    pod = world.pod(mem=1000, init=[(5000, False), (200, True)])
    world.filter(pod)
    devices = "GPU-n1-0,NVIDIA,5000,0:;GPU-n1-0,NVIDIA,200,0:;GPU-n1-0,NVIDIA,1000,0:;"
    pod = world.bound(pod, "n1", devices)
    world.state.pod_changed(pod)
    assert world.used()[0].mem_mib == 5000
    ended = [
        {"name": "ci0", "state": {"terminated": {"exitCode": 0}}},
        {"name": "ci1", "state": {"running": {}}},
    ]
    pod["status"]["initContainerStatuses"] = ended
    world.state.pod_changed(pod)
    assert (world.used()[0].mem_mib, world.used()[0].slots) == (1200, 2)
    ended[0]["state"]["terminated"]["exitCode"] = 1
    world.state.pod_changed(pod)
    assert world.used()[0].mem_mib == 5000  # it will run again


def test_reservation_ends_60_s_after_the_pod_is_back_in_the_queue(world):
    world.node()
    pod = world.pod()
    world.filter(pod)
    world.clock.now += 500
    assert world.state.drop_expired() == []  # perhaps in Permit
    world.state.pod_changed(unschedulable(pod))
    world.clock.now += 59
    world.state.pod_changed(unschedulable(pod))
    assert world.state.drop_expired() == []
    world.clock.now += 1
    assert len(world.state.drop_expired()) == 1
    assert world.used()[0].slots == 0


def test_l13_a_prebind_that_fails_after_the_reservation_frees_it(world):
    """Bind is never called then: the scheduler puts the pod back, and asks anew or not."""
    world.node(mem=1000)
    first, second = world.pod("first"), world.pod("second")
    assert world.filter(first).NodeNames == ["n1"]
    assert world.filter(second).FailedNodes  # the only place is reserved: the control
    world.state.pod_changed(unschedulable(first))
    # Its next attempt takes the place of the reservation, not another place.
    assert world.filter(first).NodeNames == ["n1"]
    assert (world.used()[0].slots, len(world.state.reservations)) == (1, 1)
    # Without a next attempt it ends by its time, and another pod gets the place.
    world.state.pod_changed(unschedulable(first))
    world.clock.now += 60
    assert len(world.state.drop_expired()) == 1
    assert (world.used()[0].slots, len(world.state.reservations)) == (0, 0)
    assert world.filter(second).NodeNames == ["n1"]


def test_l13_a_pod_that_is_deleted_after_a_failed_prebind_frees_it_at_once(world):
    world.node(mem=1000)
    first = world.pod("first")
    world.filter(first)
    world.state.pod_changed(unschedulable(first))
    world.state.pod_gone(first["metadata"]["uid"])
    assert (world.used()[0].slots, len(world.state.reservations)) == (0, 0)
    assert world.filter(world.pod("second")).NodeNames == ["n1"]


def test_no_reservation_lasts_longer_than_15_minutes(world):
    world.node()
    world.filter(world.pod())
    world.clock.now += 899
    assert world.state.drop_expired() == []
    world.clock.now += 1
    assert len(world.state.drop_expired()) == 1


def test_n6_cordon_and_health_follow_the_node(world):
    world.node(cordon="GPU-n1-0")
    assert world.filter(world.pod()).FailedNodes == {"n1": "1/1 CardCordoned"}
    world.node(healthy=False)
    assert world.filter(world.pod()).FailedNodes == {"n1": "1/1 CardNotHealth"}
    world.node()
    assert world.filter(world.pod()).NodeNames == ["n1"]


@pytest.mark.parametrize("offered", [None, "0", "many"])
def test_n2_a_node_whose_kubelet_offers_no_card_keeps_its_pods_and_takes_none(world, offered):
    world.node()
    assert world.filter(world.pod()).NodeNames == ["n1"]
    used = world.used()[0].slots
    world.node(offered=offered)
    assert world.filter(world.pod()).FailedNodes == {"n1": "1/1 CardNotHealth"}
    assert world.used()[0].slots == used
    world.node()
    assert world.filter(world.pod()).NodeNames == ["n1"]


def test_a_register_annotation_that_cannot_be_read_keeps_the_cards(world, caplog):
    world.node()
    world.filter(world.pod())
    broken = {"metadata": {"name": "n1", "annotations": {names.NODE_REGISTER: "[{"}}}
    world.state.node_changed(broken)
    assert world.used()[0].slots == 1
    assert "cannot be read" in caplog.text


def test_node_without_annotation_or_deleted_has_no_cards(world):
    world.node()
    world.state.node_changed({"metadata": {"name": "n1"}})
    assert world.state.ledger.nodes() == []
    world.node()
    world.state.node_gone("n1")
    assert world.state.ledger.nodes() == []
    world.node()
    assert world.state.ledger.nodes() == ["n1"]


def test_text_form_of_the_register_is_read(world):
    text = (
        "GPU-0,10,81920,100,NVIDIA-A100,0,true:GPU-1,10,81920,100,NVIDIA-A100,1,false,1,hami-core:"
    )
    world.state.node_changed(
        {
            "metadata": {"name": "t", "annotations": {names.NODE_REGISTER: text}},
            "status": {"allocatable": {names.RESOURCE_COUNT: "20"}},
        }
    )
    assert [card.healthy for card, _ in world.state.ledger.usage("t")] == [True, False]


def test_a_misshapen_pod_in_the_watch_harms_nobody(world, caplog):
    world.state.pod_changed({"metadata": {"uid": "x"}})
    assert "skipped" in caplog.text


def test_a_bound_pod_tells_the_shares_that_it_was_promised(world):
    """They are not kept twice where the ledger holds the same."""
    world.node(count=4)
    for pod in (
        world.pod("one"),
        world.pod("two", count=2, cores=10),
        world.pod("several", containers=[1000, None, 2000]),
        world.pod("first", init=[(3000, False)]),
    ):
        world.filter(pod)
        (reservation,) = [
            r for r in world.state.reservations if r.pod.uid == pod["metadata"]["uid"]
        ]
        promised = reservation.shares
        assert any(promised)
        world.state.confirm(reservation)
        assert world.state.bound[pod["metadata"]["uid"]].shares == promised


def quota_used(world):
    used = world.state.quotas.used("ns")
    return used.mem_mib, used.core_pct


def test_a_pod_counts_once_against_its_quota_however_it_came_to_its_node(world):
    world.node(count=2)
    first = world.pod("first", mem=3000, cores=30)
    world.filter(first)
    (reservation,) = world.state.reservations
    assert quota_used(world) == (3000, 30)
    world.state.confirm(reservation)
    world.state.confirm(reservation)
    assert quota_used(world) == (3000, 30)
    both = "GPU-n1-0,NVIDIA,500,5:GPU-n1-1,NVIDIA,500,5:;"
    second = world.bound(world.pod("second", mem=500, count=2), "n1", both)
    third = world.bound(
        world.pod("third", containers=[700, 0], cores=7), "n1", "GPU-n1-0,NVIDIA,700,7:;;"
    )
    for pod in (second, third, second, third):
        world.state.pod_changed(pod)
        world.state.pod_changed({**pod, "status": {"phase": "Running"}})
    assert quota_used(world) == (4700, 47)
    # Of pods on their nodes what they hold says what they use.
    assert not world.state.quotas._pods
    for pod in (second, first, third, second, first):
        world.state.pod_gone(pod["metadata"]["uid"])
    assert quota_used(world) == (0, 0)
    assert not world.state.quotas._pods


def test_a_pod_is_known_while_anything_is_kept_of_it(world):
    """By that a new list of pods tells which of them are gone."""
    world.node()
    state = world.state
    placed = world.bound(world.pod("placed", mem=3000), "n1", "GPU-n1-0,NVIDIA,3000,0:;")
    allocating = {**placed["metadata"]["annotations"], names.POD_BIND_PHASE: "allocating"}
    placed["metadata"]["annotations"] = allocating
    state.pod_changed(placed)
    reserved, refused = world.pod("reserved"), world.pod("refused", mem=10**6)
    stranger = world.bound(world.pod("stranger"), "n1", "GPU-n1-0,NVIDIA,1000,0:;")
    stranger["spec"]["schedulerName"] = "other"
    state.pod_changed(stranger)
    assert state.known_pods() == {placed["metadata"]["uid"]} == set(state.bound)
    world.filter(reserved)
    world.filter(refused)
    known = {pod["metadata"]["uid"] for pod in (placed, reserved, refused)}
    assert state.known_pods() == known
    assert len(state.bound) == 1
    for uid in known:
        state.pod_gone(uid)
    assert not state.known_pods() and not state.bound
    assert state.known_nodes() == ["n1"]
    state.node_gone("n1")
    assert state.known_nodes() == []


def test_a_quota_is_known_while_it_bounds_anything(world):
    quota = {
        "metadata": {"namespace": "ns", "name": "cards"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "5000"}},
    }
    world.state.quota_changed(quota)
    assert set(world.state.known_quotas()) == {"ns/cards"}
    world.state.quota_gone("ns/cards")
    assert world.state.known_quotas() == []


def test_what_pods_have_in_common_is_kept_once_however_they_came_to_their_node(world):
    world.node(count=4)
    first, second = world.pod("first", mem=500), world.pod("second", mem=700)
    for pod in (first, second):
        world.filter(pod)
        uid = pod["metadata"]["uid"]
        (reservation,) = [r for r in world.state.reservations if r.pod.uid == uid]
        world.state.confirm(reservation)
    third = world.bound(world.pod("third", mem=900), "n1", "GPU-n1-0,NVIDIA,900,0:;")
    world.state.pod_changed(third)
    sorts = {id(bound.sort) for bound in world.state.bound.values()}
    assert (len(world.state.bound), len(sorts)) == (3, 1)
