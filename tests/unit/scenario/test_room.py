"""What cannot be placed at all is told before anything is created."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.lab.scenario.room import check_room
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.model import Card
from testbed.stack.placement.decide import decide
from testbed.stack.placement.effective import fold
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.offer import Offer
from testbed.stack.placement.request import pod_request

GPU, MEM, PCT, CORES = (
    names.RESOURCE_COUNT,
    names.RESOURCE_MEMORY,
    names.RESOURCE_MEMORY_PERCENTAGE,
    names.RESOURCE_CORES,
)


def pod(name="a", *, scheduler="", annotations=None, **limits):
    words = {"gpu": GPU, "mem": MEM, "pct": PCT, "cores": CORES}
    resources = {"limits": {words[key]: str(value) for key, value in limits.items()}}
    spec = {"containers": [{"name": "main", "resources": resources}]}
    if scheduler:
        spec["schedulerName"] = scheduler
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": spec,
    }


def nodes(*sizes, slots=10):
    """One node for each list of card sizes, MiB."""
    return {
        f"n{i}": tuple(
            Card(uuid=f"GPU-{i}-{j}", index=j, mem_mib=mem, model="NVIDIA A100", slots=slots)
            for j, mem in enumerate(each)
        )
        for i, each in enumerate(sizes)
    }


def test_memory_that_no_card_has_is_named_with_what_the_largest_has():
    with pytest.raises(InputError) as caught:
        check_room([{"kind": "ConfigMap"}, pod("b", mem=90_000)], nodes([40_000], [81_050]))
    assert "pod b fits no node" in caught.value.what
    assert "CardInsufficientMemory" in caught.value.why
    assert "90,000 MiB are asked for, the largest card has 81,050 MiB" in caught.value.why
    assert "testbed up --cards" in caught.value.hint


@pytest.mark.parametrize(
    ("manifest", "word"),
    [
        (pod(gpu=3), "NodeInsufficientDevice"),
        (pod(mem=1, annotations={names.USE_UUID: "GPU-absent"}), "CardUuidMismatch"),
        (pod(mem=1, annotations={names.USE_TYPE: "H100"}), "CardTypeMismatch"),
    ],
)
def test_what_else_no_node_has(manifest, word):
    with pytest.raises(InputError) as caught:
        check_room([manifest], nodes([80_000, 80_000], [80_000]))
    assert word in caught.value.why


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"mem": 50_000}, "100,000 MiB of memory"),
        ({"pct": 51}, "81,600 MiB of memory"),
        ({"mem": 1, "cores": 51}, "102 % of compute"),
        ({"gpu": 1}, "160,000 MiB of memory"),
    ],
)
def test_what_pods_ask_for_together(limits, said):
    check_room([pod("a", **limits)], nodes([80_000]))
    with pytest.raises(InputError) as caught:
        check_room([pod("a", **limits), pod("b", **limits)], nodes([80_000]))
    assert said in caught.value.what
    check_room([pod("a", **limits), pod("b", **limits)], nodes([80_000], [80_000]))


def test_shares_are_counted():
    with pytest.raises(InputError, match="3 shares"):
        check_room([pod(str(i), mem=1) for i in range(3)], nodes([80_000], slots=2))


def test_an_init_container_may_use_the_cards_of_the_others():
    both = pod(mem=50_000)
    resources = {"limits": {MEM: "50000"}}
    both["spec"]["initContainers"] = [{"name": "init", "resources": resources}]
    check_room([both, {**both, "metadata": {"name": "b"}}], nodes([50_000, 50_000]))


def test_what_is_not_ours_to_judge_is_left_alone():
    check_room([pod(mem=90_000)], {})  # no cards are known
    check_room([pod(mem=90_000, scheduler="other")], nodes([10]))
    check_room([pod(mem="nonsense")], nodes([10]))  # admission says what is wrong with it
    check_room([pod()], nodes([10]))


@settings(max_examples=200, deadline=None)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(1, 2), st.one_of(st.none(), st.integers(1, 100)), st.integers(0, 100)
        ),
        max_size=5,
    ),
    sizes=st.lists(st.lists(st.integers(40, 100), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_whatever_fits_in_some_order_is_never_refused(asked, sizes):
    manifests = [
        pod(str(i), gpu=count, cores=cores, **({} if mem is None else {"mem": mem}))
        for i, (count, mem, cores) in enumerate(asked)
    ]
    registered = nodes(*sizes)
    ledger = Ledger()
    for node, cards in registered.items():
        ledger.set_node(node, cards)
    for manifest in manifests:
        request = pod_request(manifest, DeviceConfig())
        choice = decide(ledger, request, Offer.of(list(registered)))
        if choice is None:
            return  # this order says nothing
        name = manifest["metadata"]["name"]
        ledger.promise(name, choice.node, fold(choice.shares, request.kinds))
    check_room(manifests, registered)
