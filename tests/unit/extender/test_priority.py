"""Preemption, simulation, what waiting pods are told, and metrics: on the state alone."""

from __future__ import annotations

import json

import pytest

from testbed.stack import names
from testbed.stack.extender import debug, handler, wire
from testbed.stack.extender.histogram import Histogram
from testbed.stack.extender.metrics import exposition
from testbed.stack.extender.nominations import FREED_S


def placed(world, name, mem, priority=0, node="n1", cores=None):
    """A pod that is bound where filter put it."""
    pod = world.pod(name, mem=mem, cores=cores, priority=priority)
    assert world.filter(pod, node).NodeNames == [node]
    world.state.confirm(world.state.reservations.get(pod["metadata"]["uid"]))
    world.clock.now += 1
    return pod


def ask(world, pod, *nodes):
    body = json.dumps({"Pod": pod, "NodeNames": list(nodes or world.state.ledger.nodes())})
    return handler.filter_pods(world.state, wire.decode_filter(body.encode()))


def victims(world, answer):
    uids = {v.uid for v in answer.plan.victims}
    return {bound.pod.name for uid, bound in world.state.bound.items() if uid in uids}


def test_the_lowest_goes_before_the_fewest_and_of_equals_the_youngest(world):
    world.node(mem=10000)
    placed(world, "important", 4000, priority=50)
    placed(world, "old", 3000)
    placed(world, "young", 3000)
    answer = ask(world, world.pod("urgent", mem=3000, priority=100))
    assert victims(world, answer) == {"young"}
    world.state.unnominate(world.pods["urgent"]["metadata"]["uid"])
    # One of priority 50 would do alone; two of priority 0 go instead.
    answer = ask(world, world.pod("urgent2", mem=4000, priority=100))
    assert victims(world, answer) == {"old", "young"}


def test_only_pods_of_the_right_card_go(world):
    world.node(count=2, mem=10000)
    for i in range(4):
        placed(world, f"p{i}", 5000)
    holders = {b.pod.name: b.shares[0][0].uuid for b in world.state.bound.values()}
    pod = world.pod("urgent", mem=10000, priority=5)
    pod["metadata"]["annotations"] = {names.USE_UUID: "GPU-n1-1"}
    answer = ask(world, pod)
    assert victims(world, answer) == {n for n, uuid in holders.items() if uuid == "GPU-n1-1"}
    before = world.used()
    assert before[0].mem_mib == 10000  # the plan itself changed nothing there


def test_equal_or_higher_priorities_and_never_are_left_alone(world):
    world.node(mem=10000)
    placed(world, "a", 8000, priority=5)
    assert ask(world, world.pod("b", mem=8000, priority=5)).plan is None
    never = world.pod("c", mem=8000, priority=9, preemptionPolicy="Never")
    assert ask(world, never).plan is None
    assert ask(world, world.pod("d", mem=8000, priority=9)).plan is not None
    impossible = world.pod("e", mem=20000, priority=9)
    assert ask(world, impossible).plan is None


def test_what_victims_leave_is_kept_for_whom_they_went(world):
    world.node(mem=10000)
    old = placed(world, "old", 8000)
    urgent = world.pod("urgent", mem=8000, priority=9)
    assert ask(world, urgent).plan is not None
    assert ask(world, urgent).plan is None  # its victim is still ending
    world.state.pod_gone(old["metadata"]["uid"])
    successor = world.pod("successor", mem=8000)
    assert ask(world, successor).result.NodeNames == []
    assert world.state.waiting.take(world.clock())  # it is woken, and served
    assert ask(world, urgent).result.NodeNames == ["n1"]


def test_what_is_kept_gives_way_to_a_still_higher_priority_and_to_time(world):
    world.node(mem=10000)
    old = placed(world, "old", 8000)
    urgent = world.pod("urgent", mem=8000, priority=9)
    assert ask(world, urgent).plan is not None
    world.state.pod_gone(old["metadata"]["uid"])
    world.state.drop_expired()
    world.clock.now += FREED_S + 1
    world.state.drop_expired()
    assert ask(world, world.pod("late", mem=8000)).result.NodeNames == ["n1"]


def test_the_preempt_verb_adds_the_victims_that_free_the_cards(world):
    world.node("n1", mem=10000)
    world.node("n2", mem=10000)
    low = placed(world, "low", 8000, node="n1")
    placed(world, "high", 8000, priority=100, node="n2")
    other = "uid-of-a-pod-without-cards"
    given = {n: {"Pods": [{"UID": other}], "NumPDBViolations": 1} for n in ("n1", "n2")}
    body = {"Pod": world.pod("u", mem=5000, priority=9), "NodeNameToMetaVictims": given}
    args = wire.decode_preempt(json.dumps(body).encode())
    found = handler.preempt(world.state, args).NodeNameToMetaVictims
    assert set(found) == {"n1"}  # on n2 nobody lower holds the card
    assert [pod.UID for pod in found["n1"].Pods] == [other, low["metadata"]["uid"]]
    assert found["n1"].NumPDBViolations == 1


# --- simulation -----------------------------------------------------------------------


def node_object(world, name, register_of="n1"):
    from testbed.stack.codec import encode_register

    cards = encode_register(world.state.ledger.cards_of(register_of))
    return {
        "metadata": {"name": name, "annotations": {names.NODE_REGISTER: cards}},
        "status": {"allocatable": {names.RESOURCE_COUNT: "10"}},
    }


def test_whole_nodes_are_a_simulation_that_reserves_nothing(world):
    world.node(mem=10000)
    placed(world, "a", 8000)
    nodes = {"items": [node_object(world, "n1"), node_object(world, "template")]}
    body = json.dumps({"Pod": world.pod("b", mem=5000), "Nodes": nodes, "NodeNames": None})
    answer = handler.filter_pods(world.state, wire.decode_filter(body.encode())).result
    assert [n["metadata"]["name"] for n in answer.Nodes["items"]] == ["template"]
    assert answer.NodeNames is None
    assert answer.FailedNodes == {"n1": "1/1 CardInsufficientMemory"}
    assert len(world.state.reservations) == 0


# --- leadership ------------------------------------------------------------------------


def test_a_standby_refuses_and_forgets_its_promises(world):
    world.node()
    world.filter(world.pod("a"))
    world.state.leader = "other_1"
    world.state.follow(lambda: False)
    world.state.stand_by()
    assert world.used()[0].slots == 0
    assert "other_1" in world.filter(world.pod("b")).Error


# --- what people see -------------------------------------------------------------------


def test_a_waiting_pod_tells_numbers_and_what_would_fit(world):
    world.node(mem=10000, count=2)
    placed(world, "a", 8000, cores=70)
    placed(world, "b", 7000, cores=20)
    pod = world.pod("c", mem=5000, cores=50)
    ask(world, pod)
    world.clock.now += 2
    ask(world, pod)
    (entry,) = debug.waiting(world.state)["pods"]
    assert (entry["attempts"], entry["waits_seconds"]) == (2, 2.0)
    assert entry["reasons"] == {"2/2 CardInsufficientMemory": 1}
    (near,) = entry["nearest"]["cards"]
    assert (near["mem_lack_mib"], near["core_lack_pct"]) == (2000, 0)
    assert entry["would_fit_with"] == ["memory of at most 3000 MiB a card"]
    world.state.pod_gone(pod["metadata"]["uid"])
    assert debug.waiting(world.state) == {"pods": []}


def test_metrics_have_the_contracts_names_and_quotes_are_escaped(world):
    world.node(model='A "quoted" card')
    placed(world, "a", 1000, cores=30)
    hard = {"limits.nvidia.com/gpumem": "5000", "limits.nvidia.com/gpucores": "50"}
    world.state.quota_changed(
        {"metadata": {"namespace": "ns", "name": "q"}, "spec": {"hard": hard}}
    )
    times = Histogram()
    times.add("filter", "fit", 0.0003)
    text = exposition(world.state, times, 1.5)
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in ("#", ""))
    uuid = "GPU-n1-0"
    labels = f'node="n1",device_uuid="{uuid}",device_index="0",device_type="A \\"quoted\\" card"'
    assert lines[f"hami_gpu_memory_limit_bytes{{{labels}}}"] == str(81920 << 20)
    assert lines[f'hami_gpu_memory_allocated_bytes{{{labels},device_cores="30"}}'] == str(
        1000 << 20
    )
    assert lines[f"hami_gpu_core_allocated_ratio{{{labels}}}"] == "0.3"
    pod = f'namespace="ns",node="n1",pod="a",container_index="0",device_uuid="{uuid}"'
    assert lines[f"hami_vgpu_memory_allocated_bytes{{{pod}}}"] == str(1000 << 20)
    quota = 'namespace="ns",quota_name="q",limit="limits.nvidia.com/gpumem"'
    assert lines[f"hami_resource_quota_limit{{{quota}}}"] == "5000"
    assert lines[f"hami_resource_quota_used{{{quota}}}"] == "1000"
    bucket = 'vgpu_extender_request_seconds_bucket{verb="filter",outcome="fit",le='
    assert lines[bucket + '"0.00025"}'] == "0"
    assert lines[bucket + '"0.0005"}'] == lines[bucket + '"+Inf"}'] == "1"
    assert len([line for line in text.splitlines() if line.startswith("# TYPE")]) == len(
        {line for line in text.splitlines() if line.startswith("# TYPE")}
    )


@pytest.mark.parametrize("hard", [{"limits.nvidia.com/gpumem": "x"}, {"cpu": "4"}, {}])
def test_quotas_that_say_nothing_of_cards_bound_nothing(world, hard):
    world.node()
    world.state.quota_changed(
        {"metadata": {"namespace": "ns", "name": "q"}, "spec": {"hard": hard}}
    )
    assert world.filter(world.pod("a")).NodeNames == ["n1"]
