"""Filter: what is answered, what is reserved, and what ends a reservation."""

from __future__ import annotations

import json

import msgspec
import pytest

from testbed.errors import CodecError
from testbed.stack import names
from testbed.stack.extender import debug, handler
from testbed.stack.extender.handler import filter_pods
from testbed.stack.extender.wire import decode_bind, decode_filter


def test_success_names_one_node_and_reserves(world):
    world.node("n1")
    world.node("n2")
    result = world.filter(world.pod(mem=3000, cores=30))
    assert result.NodeNames == ["n1"]
    assert result.FailedNodes == {}
    assert result.Error == ""
    assert world.used()[0].mem_mib == 3000
    assert json.loads(msgspec.json.encode(result)) == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_l1_one_free_slot_has_one_winner(world):
    world.node(slots=1)
    first, second = world.filter(world.pod("a")), world.filter(world.pod("b"))
    assert first.NodeNames == ["n1"]
    assert second.NodeNames == []
    assert second.FailedNodes == {"n1": "1/1 CardTimeSlicingExhausted"}


def test_failure_gives_every_node_a_reason(world):
    world.node("n1", mem=10)
    offered = ["n1", *(f"bare{i}" for i in range(3))]
    result = world.filter(world.pod(mem=100), *offered)
    assert result.NodeNames == []
    assert list(result.FailedNodes) == offered
    assert all(result.FailedNodes.values())
    assert result.Error == ""


def test_failure_is_told_as_an_event_with_grouped_reasons(world):
    for i in range(9):
        world.node(f"n{i}", mem=10)
    body = json.dumps({"Pod": world.pod(mem=100), "NodeNames": [f"n{i}" for i in range(9)]})
    answer = filter_pods(world.state, decode_filter(body.encode()))
    assert answer.event == "0/9 nodes fit: 9 x 1/1 CardInsufficientMemory"


def test_same_uid_again_replaces_its_reservation(world):
    world.node()
    pod = world.pod(mem=50000)
    for _ in range(3):
        assert world.filter(pod).NodeNames == ["n1"]
    assert world.used()[0].mem_mib == 50000
    assert len(world.state.reservations) == 1


def test_pod_that_no_longer_fits_loses_its_reservation(world):
    world.node()
    pod = world.pod(mem=50000)
    world.filter(pod)
    assert world.filter(pod, "elsewhere").NodeNames == []
    assert world.used()[0].mem_mib == 0


def test_pod_that_asks_nothing_gets_all_names_back(world):
    world.node()
    result = world.filter(world.pod(mem=0), "n1", "x")
    assert json.loads(msgspec.json.encode(result))["NodeNames"] == ["n1", "x"]
    assert len(world.state.reservations) == 0


def test_before_everything_is_read_nothing_is_promised(world):
    world.node()
    world.state.pods_synced = False
    result = world.filter(world.pod())
    assert "not read" in result.Error
    assert result.NodeNames == []
    assert world.used()[0].slots == 0


@pytest.mark.parametrize("value", ["16Gi", "1.5", "-1", "2147483648"])
def test_request_that_cannot_be_meant_is_an_error_with_the_reason(world, value):
    world.node()
    result = world.filter(world.pod(mem=value))
    assert value in result.Error
    assert world.used()[0].slots == 0


def test_pod_that_the_webhook_did_not_see_is_told_so(world):
    world.node()
    pod = world.pod()
    del pod["spec"]["containers"][0]["resources"]["limits"][names.RESOURCE_COUNT]
    assert "share of a card" in world.filter(pod).Error


def test_other_schedulers_pod_is_refused(world):
    world.node()
    assert "'other'" in world.filter(world.pod(schedulerName="other")).Error
    assert len(world.state.reservations) == 0


def test_neither_names_nor_nodes_is_an_error(world):
    body = json.dumps({"Pod": world.pod(), "Nodes": None, "NodeNames": None}).encode()
    assert "neither" in filter_pods(world.state, decode_filter(body)).result.Error


def test_keys_in_any_case_are_read(world):
    world.node()
    body = json.dumps({"pod": world.pod(), "nodenames": ["n1"]}).encode()
    assert filter_pods(world.state, decode_filter(body)).result.NodeNames == ["n1"]
    args = decode_bind(b'{"podName":"p","podNamespace":"n","podUID":"u","node":"x"}')
    assert args == decode_bind(b'{"PodName":"p","PodNamespace":"n","PodUID":"u","Node":"x"}')


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"{}", b'{"Pod":null}', b'{"Pod":[]}', b"\xff", b"[" * 99999],
)
def test_malformed_requests_are_codec_errors(body):
    with pytest.raises(CodecError):
        decode_filter(body)
    with pytest.raises(CodecError):
        decode_bind(body)


@pytest.mark.parametrize("names_", ["5", '"n1"', "[1]", '{"a":1}'])
def test_names_that_are_no_list_of_names_are_an_error(world, names_):
    world.node(mem=1)
    body = f'{{"Pod":{json.dumps(world.pod())},"NodeNames":{names_}}}'.encode()
    assert "NodeNames" in filter_pods(world.state, decode_filter(body)).result.Error


@pytest.mark.parametrize(
    "pod",
    [{}, {"metadata": None}, {"metadata": {"uid": ""}}, {"metadata": {"uid": "u"}, "spec": 5}],
)
def test_misshapen_pods_are_an_error(world, pod):
    assert world.filter(pod, "n1").Error


def test_l5_bound_pod_is_not_decided_again(world):
    world.node("n1")
    world.node("n2")
    pod = world.pod(mem=3000)
    world.filter(pod, "n2")
    world.state.pod_changed(world.bound(pod, "n2", "GPU-n2-0,NVIDIA,3000,0:;"))
    before = debug.ledger(world.state)
    assert world.filter(pod, "n1", "n2").NodeNames == ["n2"]  # known from the watch
    running = {**pod, "spec": {**pod["spec"], "nodeName": "n2"}}
    assert world.filter(running, "n1", "n2").NodeNames == ["n2"]
    elsewhere = world.filter(running, "n1")
    assert elsewhere.NodeNames == []
    assert "n2" in elsewhere.FailedNodes["n1"]
    assert debug.ledger(world.state) == before


def test_use_gpuuuid_pins_to_the_card(world):
    world.node(count=4)
    pod = world.pod()
    pod["metadata"]["annotations"] = {names.USE_UUID: "GPU-n1-2"}
    assert world.filter(pod).NodeNames == ["n1"]
    assert [i for i, charge in world.used().items() if charge.slots] == [2]


def test_summary_names_few_reasons():
    text = handler.summary({"reason 0": 2} | {f"reason {i}": 1 for i in range(1, 8)})
    assert text.startswith("0/9 nodes fit: 2 x reason 0;")
    assert text.endswith("3 more reasons")
