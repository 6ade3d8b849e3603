"""Card policies, weights, NUMA binding and quota by example."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Charge, Kind, PodRequest
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount, Quotas
from testbed.stack.placement.reasons import explain
from testbed.stack.policy import card_policy, weights

GIB = 1024


def ledger_of(used=(), numa=(0, 0, 1, 1), links=None, mem=40 * GIB):
    """A node ``a``; ``used`` tells slots, MiB and cores of each card."""
    ledger = Ledger()
    cards = [Card(uuid=f"G{i}", index=i, mem_mib=mem, model="A100", numa=n)
             for i, n in enumerate(numa)]  # fmt: skip
    ledger.set_node("a", cards, links=links)
    for i, (slots, taken, cores) in enumerate(used):
        ledger.promise(f"u{i}", "a", {f"G{i}": Charge(slots=slots, mem_mib=taken, core_pct=cores)})
    return ledger


def ask(policy="spread", count=1, mem=1000, bind=False, weigh=""):
    return PodRequest(
        containers=(Request(count=count, mem_mib=mem, core_pct=10),),
        kinds=(Kind.APP,),
        constraint=Constraint(numa_bind=bind),
        card_policy=policy,
        **({"weights": weights(weigh)} if weigh else {}),
    )


def cards(ledger, pod, room=UNBOUNDED):
    choice = decide(ledger, pod, Offer.of(["a"]), room)
    return None if choice is None else "".join(share.uuid[1] for share in choice.shares[0])


HALF = (1, 20 * GIB, 50)
BIT = (1, 1 * GIB, 10)
NONE = (0, 0, 0)


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [
        ("binpack", 1, "1"),
        ("spread", 1, "3"),
        ("mutex", 1, "3"),
        ("mutex", 2, None),  # one card alone is unused
        ("binpack", 2, "12"),
        ("numa,binpack", 2, "01"),  # 1 and 2 are fuller, but of two nodes
        ("numa", 2, "23"),  # spread, where the chain says nothing else
        ("numa,binpack", 3, "012"),  # no NUMA node has three: fullness alone
        ("mutex,binpack,numa", 1, "3"),
    ],
)
def test_policies_on_one_node(policy, count, expected):
    ledger = ledger_of(used=(BIT, HALF, (1, 19 * GIB, 50), NONE))
    assert cards(ledger, ask(policy, count)) == expected


def test_mutex_says_why():
    ledger = ledger_of(used=(BIT, BIT, BIT, NONE))
    pod = ask("mutex", 2)
    assert explain(ledger, pod, ["a"]).failed["a"] == "3/4 ExclusiveDeviceAllocateConflict"


def test_ties_are_told_apart_by_a_numa_node_that_holds_all():
    ledger = ledger_of(used=((1, 40 * GIB, 50), NONE, NONE, NONE), numa=(0, 0, 1, 1))
    assert cards(ledger, ask("spread", 2)) == "12"
    assert cards(ledger, ask("spread,numa", 2)) == "23"


def test_numa_bind_is_a_promise():
    ledger = ledger_of(used=((1, 40 * GIB, 50), NONE, (1, 40 * GIB, 50), NONE))
    assert cards(ledger, ask("binpack", 2)) == "13"
    pod = ask("binpack", 2, bind=True)
    assert cards(ledger, pod) is None
    words = explain(ledger, pod, ["a"]).failed["a"]
    assert words == "2/4 CardInsufficientMemory, 2/4 NumaNotFit"
    assert cards(ledger, ask("binpack", 1, bind=True)) == "1"


LINKS = {
    "G0": {"G1": 10, "G2": 200, "G3": 10},
    "G1": {"G2": 10, "G3": 200},
    "G2": {"G3": 10},
}


def test_topology_takes_the_best_linked_set_and_alone_the_worst_linked_card():
    ledger = ledger_of(links=LINKS)
    assert cards(ledger, ask("topology-aware", 2)) == "02"
    ledger.promise("x", "a", {"G0": Charge(slots=1, mem_mib=40 * GIB)})
    assert cards(ledger, ask("topology-aware", 2)) == "13"
    # Of 1, 2, 3: the links of 2 are worth 20, of 1 and 3 210.
    assert cards(ledger, ask("topology-aware", 1)) == "2"
    assert cards(ledger, ask("topology-aware,numa", 2)) == "13"
    assert cards(ledger, ask("numa,topology-aware", 2)) == "23"


def test_topology_on_a_node_of_more_than_sixteen_cards_goes_step_by_step():
    chain = {f"G{i}": {f"G{i + 1}": 50} for i in range(23)}
    ledger = Ledger()
    nodes = [Card(uuid=f"G{i}", index=i, mem_mib=1000, model="A") for i in range(24)]
    ledger.set_node("a", nodes, links=chain)
    pod = ask("topology-aware", 8, mem=10)
    choice = decide(ledger, pod, Offer.of(["a"]))
    assert [s.uuid for s in choice.shares[0]] == [f"G{i}" for i in range(8)]


def test_weights_decide_what_full_means():
    # Card 0 has little memory and many slots taken, card 1 the other way round.
    ledger = ledger_of(used=((5, 1 * GIB, 10), (1, 30 * GIB, 10)), numa=(0, 0))
    assert cards(ledger, ask("binpack", weigh="slot=1,core=0,memory=0")) == "0"
    assert cards(ledger, ask("binpack", weigh="slot=0,core=0,memory=2.5")) == "1"


def test_a_chain_is_read_with_spaces_and_any_case():
    found = card_policy("Mutex, binpack ,NUMA")
    assert found.words == ("mutex", "binpack", "numa")
    assert (found.mutex, found.fullest, found.tie, found.group) == (True, True, True, False)
    with pytest.raises(InputError) as caught:
        card_policy("binpak", "annotation x")
    assert "'binpak'" in caught.value.text()


# --- quota ---------------------------------------------------------------------------


def test_quota_is_over_the_final_placement():
    ledger = ledger_of(numa=(0,), mem=40 * GIB)
    whole = PodRequest(
        containers=(Request(count=1, mem_pct=50),), kinds=(Kind.APP,), card_policy="spread"
    )
    assert cards(ledger, whole, Amount(mem_mib=20 * GIB)) == "0"
    assert cards(ledger, whole, Amount(mem_mib=20 * GIB - 1)) is None
    words = explain(ledger, whole, ["a"], Amount(mem_mib=20 * GIB - 1)).failed["a"]
    assert words == "1/1 ResourceQuotaNotFit"


def test_two_cards_count_twice_and_an_init_container_by_its_peak():
    ledger = ledger_of(numa=(0, 0))
    two = ask("spread", 2, mem=1000)
    assert cards(ledger, two, Amount(mem_mib=2000)) == "01"
    assert cards(ledger, two, Amount(mem_mib=1999)) is None
    assert cards(ledger, two, Amount(core_pct=19)) is None
    one = ledger_of(numa=(0,))
    pod = PodRequest(
        containers=(Request(count=1, mem_mib=5000), Request(count=1, mem_mib=3000)),
        kinds=(Kind.INIT, Kind.APP),
    )
    assert cards(one, pod, Amount(mem_mib=5000)) == "0"
    assert cards(one, pod, Amount(mem_mib=4999)) is None


def test_of_unequal_cards_the_one_within_the_quota_is_found():
    ledger = Ledger()
    ledger.set_node("a", [Card(uuid="A", mem_mib=80 * GIB, model="H100")])
    ledger.set_node("b", [Card(uuid="B", mem_mib=16 * GIB, model="T4")])
    pod = PodRequest(containers=(Request(count=1, mem_pct=100),), kinds=(Kind.APP,))
    choice = decide(ledger, pod, Offer.of(["a", "b"]), Amount(mem_mib=20 * GIB))
    assert choice.node == "b"


def test_quotas_count_a_pod_once_and_the_tightest_bounds():
    quotas = Quotas()
    assert quotas.room("ns") == UNBOUNDED
    quotas.set("ns", "one", Amount(mem_mib=1000))
    quotas.set("ns", "two", Amount(mem_mib=800, core_pct=50))
    charge = Charge(slots=1, mem_mib=300, core_pct=20)
    for _ in range(2):
        quotas.charge("u", "ns", [charge])
    assert quotas.room("ns") == Amount(mem_mib=500, core_pct=30)
    assert quotas.used("ns") == Amount(mem_mib=300, core_pct=20)
    quotas.remove("ns", "two")
    assert quotas.room("ns") == Amount(mem_mib=700)
    for _ in range(2):
        quotas.release("u")
    assert quotas.used("ns") == Amount(mem_mib=0, core_pct=0)
    quotas.set("ns", "one", Amount())  # a quota of other things is none
    assert quotas.room("ns") == UNBOUNDED
    quotas.set("ns", "none", Amount(mem_mib=0))
    assert quotas.room("ns") == Amount(mem_mib=0)
