"""Why a pod waits: numbers, and advice that was tried."""

from __future__ import annotations

import copy
import re

import pytest

from testbed.lab.explain import explain, text
from testbed.lab.explain.room import ledger_of
from testbed.stack.config import DeviceConfig
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.request import pod_request

from .conftest import T4, limits, pod


def advice(found):
    return [each.what for each in found.remedies]


def test_memory_is_short_by_so_much_on_the_nearest_card(world):
    facts = world(n1=[{}, {}], n2=[{}])
    facts.hold("a", "n1", (0, 60_000, 50))
    facts.hold("b", "n1", (1, 50_000, 50))
    facts.hold("c", "n2", (0, 70_000, 10))
    found = explain(facts.facts(pod("p", limits=limits(mem=40_000, cores=20))))
    assert found.state == "waiting"
    assert "card, 1 of n1, has 30,000 MiB free of the 40,000 MiB asked" in found.says
    assert [node.node for node in found.nodes] == ["n1", "n2"]
    assert [(room.index, room.lack.mem_mib) for room in found.nodes[0].cards] == [
        (1, 10_000),
        (0, 20_000),
    ]
    assert found.counts == {"2/2 CardInsufficientMemory": 1, "1/1 CardInsufficientMemory": 1}
    assert advice(found) == [
        "it asked for at most 30,000 MiB",
        "pod default/b ended (it holds 50,000 MiB and 50 %)",
        "pod default/a ended (it holds 60,000 MiB and 50 %)",
        "pod default/c ended (it holds 70,000 MiB and 10 %)",
    ]


def test_compute_is_short(world):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 1000, 70))
    found = explain(facts.facts(pod("p", limits=limits(mem=1000, cores=50))))
    assert "30 % of compute free of 50 % asked" in found.says
    assert advice(found)[0] == "it asked for at most 30 % of compute"


def test_memory_and_compute_are_short(world):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 70_000, 70))
    found = explain(facts.facts(pod("p", limits=limits(mem=20_000, cores=50))))
    assert "10,000 MiB free of the 20,000 MiB asked and 30 % of compute" in found.says
    assert advice(found)[0] == "it asked for at most 10,000 MiB and 30 % of compute"


def test_a_card_alone(world):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 1000, 10))
    found = explain(facts.facts(pod("p", limits=limits(mem=1000, cores=100))))
    assert "shared, and it asks for a card alone" in found.says
    assert advice(found) == [
        "it asked for at most 90 % of compute",
        "pod default/a ended (it holds 1,000 MiB and 10 %)",
    ]


def test_slots(world):
    facts = world(n1=[{}])
    for number in range(10):
        facts.hold(f"h{number}", "n1", (0, 10, 1))
    found = explain(facts.facts(pod("p", limits=limits(mem=10, cores=1))))
    assert "all its 10 slots taken" in found.says
    assert len(found.remedies) == 3  # any one's end would do: three are named


def test_more_cards_than_a_node_has(world):
    found = explain(world(n1=[{}] * 2, n2=[{}]).facts(pod("p", limits=limits(3, mem=10))))
    assert "it asks for 3 cards at once, and the nearest node, n1, has 2 cards" in found.says
    assert advice(found) == ["it asked for 2 cards"]


def test_more_memory_than_any_card_has(world):
    facts = world(n1=[{}], n2=[{"mem": 15_000, "model": T4}])
    found = explain(facts.facts(pod("p", limits=limits(mem=90_000))))
    assert found.notes == (
        "no card here is that large: programs can have 80,000 MiB of the largest",
    )
    assert advice(found) == ["it asked for at most 80,000 MiB"]


def test_a_card_that_is_too_small_is_not_the_nearest(world):
    facts = world(big=[{}], small=[{"mem": 15_000, "model": T4}])
    facts.hold("a", "big", (0, 75_000, 10))
    found = explain(facts.facts(pod("p", limits=limits(mem=16_000))))
    assert found.nodes[0].node == "big"
    assert found.nodes[1].cards[0].lack.too_small


def test_a_model_that_there_is_not(world):
    subject = pod("p", metadata={"annotations": {"nvidia.com/use-gputype": "H100"}})
    found = explain(world(n1=[{}]).facts(subject))
    assert "not of a wanted model" in found.says
    assert advice(found) == ["it did without its annotation nvidia.com/use-gputype"]


def test_cordoned_and_unhealthy_cards(world):
    facts = world(n1=[{"cordoned": True}], n2=[{"healthy": False}])
    found = explain(facts.facts(pod("p", limits=limits(mem=10))))
    assert {node.node: node.cards[0].lack.blocked for node in found.nodes} == {
        "n1": ("cordoned",),
        "n2": ("not healthy",),
    }
    assert advice(found) == ["card 0 of n1 were not cordoned"]


def test_a_plugin_that_is_away_is_told_from_sick_cards(world):
    facts = world(n1=[{"healthy": False}])
    facts.nodes["n1"]["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    found = explain(facts.facts(pod("p")))
    assert "its device plugin is away" in found.says


@pytest.mark.parametrize(
    ("spec", "subject", "why"),
    [
        ({"unschedulable": True}, {}, "the node is cordoned"),
        (
            {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, {},
            "taint k=v:NoSchedule is not tolerated",
        ),
        ({}, {"nodeSelector": {"zone": "b"}}, "nodeSelector zone=b does not match"),
        (
            {},
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["b"]}]}]}}}},
            "required node affinity does not match",
        ),
    ],
)  # fmt: skip
def test_a_node_that_the_scheduler_does_not_offer(world, spec, subject, why):
    facts = world(n1=[{}])
    facts.nodes["n1"]["spec"].update(spec)
    found = explain(facts.facts(pod("p", spec=subject)))
    assert found.says == f"waits: none of 1 nodes is open to it: {why}"
    assert found.nodes[0].excluded == why
    assert found.counts == {why: 1}
    assert advice(found) == [f"node n1 were open to it ({why})"]


@pytest.mark.parametrize(
    ("taint", "toleration"),
    [
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"operator": "Exists"}),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "operator": "Exists"}),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "k", "value": "v"}),
        ({"key": "k", "effect": "PreferNoSchedule"}, {"key": "other"}),
    ],
)
def test_taints_that_are_tolerated(world, taint, toleration):
    facts = world(n1=[{}])
    facts.nodes["n1"]["spec"]["taints"] = [taint]
    found = explain(facts.facts(pod("p", spec={"tolerations": [toleration]})))
    assert found.says.startswith("fits on n1 now")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            {"nvidia.com/gpumen": "4096"},
            "it has no nvidia.com/gpumen (did you mean nvidia.com/gpumem?)",
        ),
        ({"example.com/fpga": "1"}, "it has no example.com/fpga"),
        ({"memory": "64Gi"}, "it has 8Gi memory and 64Gi are asked"),
        ({"cpu": "2", "memory": "8Gi", "ephemeral-storage": "1Gi", "nvidia.com/gpumem": "9"}, ""),
    ],
)
def test_resources_that_a_node_does_not_have(world, asked, why):
    facts = world(n1=[{}])
    facts.nodes["n1"]["status"]["allocatable"].update(cpu="2", memory="8Gi")
    found = explain(facts.facts(pod("p", limits={"nvidia.com/gpu": "1", **asked})))
    if why:
        assert found.says == f"waits: none of 1 nodes is open to it: {why}"
        assert found.counts == {why: 1}
    else:
        assert found.says.startswith("fits on n1 now")


def test_what_fits_now_waits_for_the_scheduler(world):
    found = explain(world(n1=[{}]).facts(pod("p")))
    assert found.says == "fits on n1 now; the scheduler has not tried again yet"
    assert not found.remedies and not found.counts


def test_containers_that_do_not_fit_together(world):
    two = [
        {"name": name, "resources": {"limits": limits(mem=mem)}}
        for name, mem in (("x", 50_000), ("y", 40_000))
    ]
    found = explain(world(n1=[{}]).facts(pod("p", containers=two)))
    assert found.says == "waits: its 2 containers do not fit together on n1"
    assert [(ask.container, ask.mem_mib) for ask in found.asked] == [("x", 50_000), ("y", 40_000)]


def test_no_cards_at_all(world):
    facts = world()
    facts.nodes["n1"] = {"metadata": {"name": "n1"}, "spec": {}, "status": {}}
    assert explain(facts.facts(pod("p"))).says == "waits: no node has registered a card"


def test_an_extender_that_is_silent_is_said_so(world):
    facts = world(n1=[{}]).facts(pod("p"), books=None, problems=("the extender's ledger: gone",))
    found = explain(facts)
    assert found.says == "waits, and the extender does not say why"
    assert found.notes == ("the extender's ledger: gone",)


def kept(*, reasons=None, quota=None, evicts=None):
    """What the extender remembers of the pod p."""
    return {
        "pods": [
            {
                "namespace": "default", "name": "p", "uid": "uid-p", "attempts": 41,
                "waits_seconds": 3800.0, "refused_seconds_ago": 12.0, "reasons": reasons or {},
                "quota_left": quota, "evicts": evicts,
            }
        ]
    }  # fmt: skip


def test_what_the_extender_remembers_outlasts_the_events(world):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 60_000, 50))
    subject = pod("p", limits=limits(mem=40_000))
    found = explain(facts.facts(subject, waiting=kept(), events=[]))
    assert found.refused is not None and found.refused.attempts == 41
    assert "refused 41 times in 63 min 20 s, the last 12 s ago" in text(found).splitlines()
    # Another pod's memory is not this one's.
    subject["metadata"]["uid"] = "other"
    assert explain(facts.facts(subject, waiting=kept())).refused is None


def test_a_ledger_that_is_silent_leaves_the_reasons_of_the_last_attempt(world):
    waiting = kept(reasons={"1/1 CardInsufficientMemory": 7})
    found = explain(world(n1=[{}]).facts(pod("p"), books=None, waiting=waiting))
    assert found.counts == {"1/1 CardInsufficientMemory": 7} and found.refused is not None


def test_a_quota_is_told_from_full_cards(world):
    facts = world(n1=[{}, {}])
    subject = pod("p", limits=limits(mem=40_000, cores=50))
    left = {"mem_mib": 30_000, "core_pct": None}
    found = explain(facts.facts(subject, waiting=kept(quota=left)))
    assert found.says == (
        "waits: cards are free for it, and the quota of namespace default has 30,000 MiB left"
    )
    assert found.counts == {"2/2 ResourceQuotaNotFit": 1}
    assert advice(found) == [
        "it asked for at most 30,000 MiB",
        "its namespace had a larger quota, or less of it in use",
    ]
    # Without the quota the same pod fits.
    assert explain(facts.facts(subject, waiting=kept())).says.startswith("fits on n1")


def test_what_is_advised_beside_a_quota_is_within_it(world):
    facts = world(n1=[{}, {}])
    facts.hold("a", "n1", (0, 60_000, 50), (1, 60_000, 50))
    left = {"mem_mib": 15_000, "core_pct": 30}
    subject = pod("p", limits=limits(mem=40_000, cores=60))
    found = explain(facts.facts(subject, waiting=kept(quota=left)))
    assert "nearest card" in found.says
    assert not any("20,000 MiB" in what for what in advice(found))
    assert not any("ended" in what for what in advice(found))
    subject = pod("p", limits=limits(2, mem=15_000, cores=30))
    found = explain(facts.facts(subject, waiting=kept(quota=left)))
    assert found.says.endswith("has 15,000 MiB and 30 % of compute left, and it counts 2 cards")
    assert advice(found)[0] == "it asked for at most 7,500 MiB and 15 % of compute"


def test_whose_end_is_on_its_way_is_said(world):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 60_000, 50))
    evicts = {"node": "n1", "victims": ["uid-a"]}
    found = explain(facts.facts(pod("p", limits=limits(mem=40_000)), waiting=kept(evicts=evicts)))
    assert found.notes == ("room is made for it on n1: default/a, of a lower priority",)


def test_gates(world):
    found = explain(world(n1=[{}]).facts(pod("p", spec={"schedulingGates": [{"name": "g"}]})))
    assert found.says == "waits for its scheduling gates: g"


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("reserved", "waits for the scheduler to bind it"),
        ("waiting", "waits until default/a has its devices there"),
        ("binding", "is being bound"),
    ],
)
def test_a_reservation(world, stage, words):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 1000, 10))
    held = {
        "reservations": [{"uid": "uid-p", "node": "n1", "stage": stage, "age_seconds": 3.2}],
        "turns": {"n1": {"holders": ["uid-a"], "waiting": ["uid-p"]}},
    }
    found = explain(facts.facts(pod("p"), reservations=held))
    assert found.state == "reserved" and found.node == "n1"
    assert found.says.startswith("has its cards on n1 reserved for 3 s") and words in found.says


def test_a_request_that_cannot_be_meant(world):
    subject = pod("p", limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi"})
    found = explain(world(n1=[{}]).facts(subject))
    assert found.state == "invalid"
    assert "nvidia.com/gpumem" in found.says and "16Gi" in found.says
    assert found.notes[0].startswith("to fix: ") and "16384" in found.notes[0]


def test_pods_that_are_not_ours(world):
    facts = world(n1=[{}])
    found = explain(facts.facts(pod("p", limits={"cpu": "1"})))
    assert (found.state, found.says) == ("foreign", "asks for no card")
    subject = pod("p", spec={"schedulerName": "default-scheduler"})
    assert "belongs to scheduler 'default-scheduler'" in explain(facts.facts(subject)).says
    subject["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert "hami.io/webhook=ignore" in explain(facts.facts(subject)).notes[0]


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("cores", [0, 40, 100])
@pytest.mark.parametrize("mem", [None, 30_000, 79_000])
def test_advice_holds_when_it_is_followed(world, cards, cores, mem):
    """Whatever is advised about the request itself is a request that the extender places."""
    facts = world(n1=[{}, {}], n2=[{"mem": 15_000, "model": T4}])
    facts.hold("a", "n1", (0, 60_000, 70), (1, 30_000, 20))
    facts.hold("b", "n2", (0, 5_000, 50))
    subject = pod("p", limits=limits(cards, mem, cores))
    found = explain(facts.facts(subject))
    ledger = ledger_of(facts.books)
    fits = decide(ledger, pod_request(subject, DeviceConfig()), Offer.of(["n1", "n2"]))
    assert bool(fits) == found.says.startswith("fits")
    for remedy in found.remedies:
        changed = copy.deepcopy(subject)
        asked = changed["spec"]["containers"][0]["resources"]["limits"]
        if match := re.search(r"([\d,]+) MiB( |$)", remedy.what):
            asked["nvidia.com/gpumem"] = match[1].replace(",", "")
        if match := re.search(r"(\d+) % of compute", remedy.what):
            asked["nvidia.com/gpucores"] = match[1]
        if "one card" in remedy.what:
            asked["nvidia.com/gpu"] = "1"
        if remedy.what.startswith("pod "):
            continue  # tried by the next test
        choice = decide(ledger, pod_request(changed, DeviceConfig()), Offer.of(["n1", "n2"]))
        assert choice is not None and choice.node == remedy.node, remedy


def test_a_pod_s_end_is_advised_only_if_it_alone_helps(world):
    facts = world(n1=[{}])
    facts.hold("a", "n1", (0, 30_000, 10))
    facts.hold("b", "n1", (0, 30_000, 10))
    small, large = limits(mem=40_000), limits(mem=60_000)
    assert (
        sum("ended" in what for what in advice(explain(facts.facts(pod("p", limits=small))))) == 2
    )
    assert not any("ended" in what for what in advice(explain(facts.facts(pod("p", limits=large)))))


def test_init_containers_hold_their_peak_only_until_they_are_through(world):
    facts = world(n1=[{}])
    held = facts.hold("a", "n1", (0, 60_000, 10))
    # The init container's 60,000 MiB are what is charged; the app has none.
    held["spec"]["initContainers"] = held["spec"]["containers"]
    held["spec"]["containers"] = [{"name": "app"}]
    entry = facts.books["pods"][0]
    entry["devices"] += ";"
    found = explain(facts.facts(pod("p", limits=limits(mem=40_000))))
    assert any("pod default/a ended" in what for what in advice(found))


def test_the_text_begins_with_the_answer_and_names_what_was_tried(world):
    facts = world(n1=[{}] * 6, n2=[{}], n3=[{}], n4=[{}])
    for node, cards in (("n1", 6), ("n2", 1), ("n3", 1), ("n4", 1)):
        facts.hold(f"h{node}", node, *((i, 60_000, 10) for i in range(cards)))
    subject = pod("p", limits=limits(mem=40_000))
    subject["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}
    ]
    events = [
        {"type": "Warning", "reason": "FailedScheduling", "message": "0/4 nodes are available"},
        {"type": "Warning", "reason": "FilteringFailed", "message": "stale", "lastTimestamp": "1"},
        {"type": "Warning", "reason": "FilteringFailed", "message": "new", "lastTimestamp": "2"},
        {"type": "Normal", "reason": "Other", "message": "noise"},
    ]
    shown = text(explain(facts.facts(subject, events=events)))
    lines = shown.splitlines()
    assert lines[0].startswith("default/p waits: the nearest card")
    assert "and 1 more nodes, further away" in lines
    assert re.search(r"(?m)^would fit if it asked for at most 20,000 MiB: on n\d$", shown)
    assert "scheduler: 0/4 nodes are available" in lines
    assert "event: FilteringFailed: new" in lines and "stale" not in shown and "noise" not in shown


# --- another vendor's cards ---------------------------------------------------------


def of_hygon(world, **asked):
    """Facts of a pod that asks for DCUs, beside a GPU that is free."""
    found = world(both=[{}, {"mem": 30_000, "model": "Z100L", "vendor": "DCU"}], gpu=[{}])
    found.nodes["both"]["status"]["allocatable"]["hygon.com/dcunum"] = "4"
    found.hold("other", "both", (1, 20_000, 0))
    resources = {f"hygon.com/{key}": str(value) for key, value in asked.items()}
    return found, found.facts(
        pod("p", limits=resources), config=DeviceConfig(vendors=("nvidia", "hygon"))
    )


def test_the_nearest_card_is_one_of_the_vendor_that_is_asked(world):
    _, facts = of_hygon(world, dcunum=1, dcumem=15_000)
    found = explain(facts)
    assert "the nearest card, 1 of both, has 10,000 MiB free of the 15,000 MiB asked" in found.says
    assert [remedy.what for remedy in found.remedies if "at most" in remedy.what] == [
        "it asked for at most 10,000 MiB"
    ]
    assert [len(node.cards) for node in found.nodes] == [1, 0]


def test_the_largest_card_is_one_of_the_vendor_that_is_asked(world):
    _, facts = of_hygon(world, dcunum=1, dcumem=50_000)
    assert any("30,000 MiB of the largest" in note for note in explain(facts).notes)


def test_a_vendors_plugin_may_be_away_alone(world):
    books, facts = of_hygon(world, dcunum=1, dcumem=1000)
    del books.nodes["both"]["status"]["allocatable"]["hygon.com/dcunum"]
    books.books["nodes"]["both"]["cards"][1]["healthy"] = False  # as the extender takes it
    assert "its device plugin is away" in explain(facts).says


def test_no_card_of_the_vendor_is_anywhere(world):
    found = world(gpu=[{}])
    asks = pod("p", limits={"hygon.com/dcunum": "1"})
    facts = found.facts(asks, config=DeviceConfig(vendors=("nvidia", "hygon")))
    assert "no node that is open to it has a card of DCU" in explain(facts).says
