"""A second vendor's pods, from admission over fit to the annotations that its plugin reads."""

from __future__ import annotations

import base64
import json

import pytest

from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import HYGON, read_shares, share_annotations, vendors
from testbed.stack.extender import handler, wire
from testbed.stack.extender.histogram import Histogram
from testbed.stack.extender.metrics import exposition
from testbed.stack.extender.state import State
from testbed.stack.model import Card, Share

CONFIG = DeviceConfig(vendors=("nvidia", "hygon"))
#: The text form: UUID, count, MiB, cores, type, numa, health, each card ended by a colon.
REGISTER = "DCU-0,4,32768,100,Z100L,0,true:DCU-1,4,32768,100,Z100L,1,true:"
A100 = Card(uuid="GPU-0", mem_mib=81920, model="NVIDIA A100-SXM4-80GB")


@pytest.fixture
def state():
    found = State(CONFIG, clock=lambda: 1.0, wall=lambda: 1790000000.0)
    found.nodes_synced = found.pods_synced = True
    offered = {names.RESOURCE_COUNT: "10", HYGON.count: "8"}
    annotations = {names.NODE_REGISTER: encode_register([A100]), HYGON.register: REGISTER}
    for name, notes in (("both", annotations), ("gpu", {names.NODE_REGISTER: encode_register(
            [Card(uuid="GPU-1", mem_mib=81920, model="NVIDIA A100-SXM4-80GB")])})):  # fmt: skip
        found.node_changed(
            {"metadata": {"name": name, "annotations": notes}, "status": {"allocatable": offered}}
        )
    return found


def admitted(limits, **annotations):
    """The pod as the webhook would have it stored, with a uid."""
    from testbed.stack.webhook.handler import Context, review

    pod = {
        "metadata": {"name": "p", "namespace": "ns", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    request = {"uid": "u", "operation": "CREATE", "object": pod}
    response = review({"kind": "AdmissionReview", "request": request}, Context(config=CONFIG))[
        "response"
    ]
    patch = json.loads(base64.b64decode(response["patch"]))
    for operation in patch:
        *parents, last = [p.replace("~1", "/") for p in operation["path"].split("/")[1:]]
        where = pod
        for part in parents:
            where = where[int(part)] if isinstance(where, list) else where[part]
        where[last] = operation["value"]
    pod["metadata"]["uid"] = "uid-1"
    return pod


def placed(state, pod):
    body = json.dumps({"Pod": pod, "NodeNames": ["both", "gpu"]}).encode()
    return handler.filter_pods(state, wire.decode_filter(body)).result


def test_a_pod_gets_the_cards_of_its_vendor(state):
    pod = admitted({HYGON.memory: "4000", HYGON.cores: "30"})
    assert pod["spec"]["containers"][0]["resources"]["limits"][HYGON.count] == "1"
    assert placed(state, pod).NodeNames == ["both"]
    reservation = state.reservations.get("uid-1")
    (share,) = reservation.shares[0]
    assert (share.vendor, share.mem_mib, share.core_pct) == ("DCU", 4000, 30)
    metadata = handler.binding(reservation, 1, label=False, config=CONFIG)["metadata"]
    notes = metadata["annotations"]
    assert notes[HYGON.to_allocate] == notes[HYGON.allocated] == f"{share.uuid},DCU,4000,30:;"
    assert names.POD_TO_ALLOCATE not in notes  # that one is for NVIDIA's plugin
    assert notes[names.POD_NODE] == "both"


def test_a_restart_finds_what_was_promised(state):
    pod = admitted({HYGON.count: "1", HYGON.memory: "4000"})
    placed(state, pod)
    reservation = state.reservations.get("uid-1")
    notes = handler.binding(reservation, 1, label=False, config=CONFIG)["metadata"]["annotations"]
    before = {card.uuid: charge for card, charge in state.ledger.usage("both")}
    pod["metadata"]["annotations"] = notes
    pod["spec"]["nodeName"] = "both"
    state.pod_changed(pod)  # confirmed by the watch
    state.pod_gone("uid-1")
    assert all(not charge.slots for _, charge in state.ledger.usage("both"))
    state.pod_changed(pod)  # as a new process reads it
    assert {card.uuid: charge for card, charge in state.ledger.usage("both")} == before


def test_neither_vendor_serves_the_other(state):
    assert "DCU" not in str(placed(state, admitted({names.RESOURCE_MEMORY: "90000"})).NodeNames)
    found = placed(state, admitted({HYGON.memory: "40000"}))
    assert found.NodeNames == []
    failed = {**found.FailedNodes, **found.FailedAndUnresolvableNodes}
    assert "CardTypeMismatch" in failed["gpu"] and "CardInsufficientMemory" in failed["both"]
    two = placed(state, admitted({HYGON.count: "3", HYGON.memory: "1"}))
    assert two.NodeNames == []  # two DCUs and a GPU are not three DCUs


def test_constraints_by_the_vendors_own_annotations(state):
    pod = admitted({HYGON.memory: "1"}, **{HYGON.use_uuid: "DCU-1", names.USE_UUID: "GPU-0"})
    assert placed(state, pod).NodeNames == ["both"]
    assert state.reservations.get("uid-1").shares[0][0].uuid == "DCU-1"


def test_register_annotation_is_text_and_round_trips():
    cards = HYGON.decode(REGISTER)
    assert [(c.uuid, c.vendor, c.mem_mib, c.numa) for c in cards] == [
        ("DCU-0", "DCU", 32768, 0),
        ("DCU-1", "DCU", 32768, 1),
    ]
    assert HYGON.decode(HYGON.encode(cards)) == cards


def test_lists_of_two_vendors_are_kept_apart():
    gpu = Share(uuid="GPU-0", mem_mib=1, core_pct=2)
    dcu = Share(uuid="DCU-0", vendor="DCU", mem_mib=3, core_pct=4)
    notes = share_annotations(((gpu,), (), (dcu,)), CONFIG)
    assert notes[names.POD_ALLOCATED] == "GPU-0,NVIDIA,1,2:;;;"
    assert notes[HYGON.allocated] == ";;DCU-0,DCU,3,4:;"
    assert read_shares(notes, 3, CONFIG) == ((gpu,), (), (dcu,))
    assert read_shares({}, 3, CONFIG) is None


def test_names_of_vendors_do_not_meet():
    known = vendors(CONFIG)
    for attribute in ("word", "count", "memory", "cores", "register", "allocated", "to_allocate"):
        assert len({getattr(vendor, attribute) for vendor in known}) == len(known)


def test_a_quota_bounds_the_cards_that_it_names_and_no_others(state):
    def quota(**hard):
        hard = {f"limits.{key}": value for key, value in hard.items()}
        state.quota_changed({"metadata": {"namespace": "ns", "name": "q"}, "spec": {"hard": hard}})

    dcu = admitted({HYGON.count: "1", HYGON.memory: "3000"})
    gpu = admitted({names.RESOURCE_COUNT: "1", names.RESOURCE_MEMORY: "3000"})
    gpu["metadata"]["uid"] = "uid-2"
    quota(**{names.RESOURCE_MEMORY: "4000"})
    assert placed(state, dcu).NodeNames == ["both"]
    # What the DCU took is not NVIDIA's.
    assert state.quotas.used("ns").mem_mib == 0
    assert placed(state, gpu).NodeNames
    assert state.quotas.used("ns").mem_mib == state.quotas.used("ns", HYGON.word).mem_mib == 3000
    # Its own key bounds it.
    state.release("uid-1")
    quota(**{HYGON.memory: "2000"})
    answer = placed(state, dcu)
    assert not answer.NodeNames and "ResourceQuotaNotFit" in answer.FailedNodes["both"]
    text = exposition(state, Histogram(), None)
    labels = 'namespace="ns",quota_name="q",limit="limits.hygon.com/dcumem"'
    assert f"hami_resource_quota_limit{{{labels}}} 2000" in text
    assert "limits.nvidia.com" not in text
    state.quota_gone("ns/q")
    assert placed(state, dcu).NodeNames
