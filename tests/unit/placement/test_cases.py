"""Cases from the trackers of the field: request maths, ledger, init containers."""

from __future__ import annotations

import pytest

from testbed.stack.codec import encode_pod_shares
from testbed.stack.model import Card, Constraint, Request, Share
from testbed.stack.placement import Charge, Kind, PodRequest, fold
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.reasons import NO_CARDS, explain

GIB = 1024


def cards(count=1, mem=40 * GIB, node="a", **more):
    model = more.pop("model", "NVIDIA A100-SXM4-40GB")
    return [
        Card(uuid=f"GPU-{node}{i}", index=i, mem_mib=mem, model=model, **more) for i in range(count)
    ]


def ledger_of(**nodes):
    ledger = Ledger()
    for name, found in nodes.items():
        ledger.set_node(name, found)
    return ledger


def apps(*requests, **more):
    return PodRequest(containers=requests, kinds=(Kind.APP,) * len(requests), **more)


def ask(mem=None, pct=None, cores=0, count=1):
    if mem is None and pct is None:
        pct = 100
    return Request(count=count, mem_mib=mem, mem_pct=pct, core_pct=cores)


def run(ledger, uid, pod, *nodes):
    choice = decide(ledger, pod, Offer.of(list(nodes or ledger.nodes())))
    if choice is not None:
        ledger.promise(uid, choice.node, fold(choice.shares, pod.kinds))
    return choice


def why(ledger, pod, node="a"):
    return explain(ledger, pod, [node]).failed[node]


def used(ledger, node="a"):
    return {card.uuid: charge for card, charge in ledger.usage(node)}


def test_r1_each_container_is_charged_to_the_card_it_is_named_on():
    ledger = ledger_of(a=cards(2, mem=10 * GIB))
    choice = run(ledger, "u", apps(ask(10 * GIB), ask(1 * GIB)))
    (first,), (second,) = choice.shares
    assert first.uuid != second.uuid
    assert used(ledger)[first.uuid].mem_mib == 10 * GIB
    assert used(ledger)[second.uuid].mem_mib == 1 * GIB


def test_r2_two_cards_of_a_node_with_one_do_not_fit():
    ledger = ledger_of(a=cards(1))
    pod = apps(ask(count=2))
    assert run(ledger, "u", pod) is None
    assert why(ledger, pod) == "1/1 NodeInsufficientDevice"


def test_r5_three_containers_take_three_slots():
    ledger = ledger_of(a=cards(1, slots=10))
    run(ledger, "u", apps(ask(100), ask(100), ask(100)))
    assert used(ledger)["GPU-a0"].slots == 3


def test_r6_a_second_release_changes_nothing():
    ledger = ledger_of(a=cards(1))
    run(ledger, "u", apps(ask(1000, cores=10)))
    assert ledger.release("u")
    assert not ledger.release("u")
    assert used(ledger)["GPU-a0"] == Charge()


def test_r7_the_eleventh_pod_of_ten_splits_waits_with_the_reason():
    ledger = ledger_of(a=cards(1, slots=10))
    pod = apps(ask(100))
    assert all(run(ledger, f"u{i}", pod) for i in range(10))
    assert run(ledger, "u10", pod) is None
    assert why(ledger, pod) == "1/1 CardTimeSlicingExhausted"


def test_r8_the_score_contains_the_request():
    ledger = ledger_of(a=cards(1, mem=40960, slots=10))
    assert run(ledger, "u", apps(ask(20480, cores=30))).score == pytest.approx(9.0)


def test_r9_the_third_half_of_a_card_does_not_fit():
    ledger = ledger_of(a=cards(1, mem=24 * GIB))
    pod = apps(ask(12 * GIB))
    assert [bool(run(ledger, f"u{i}", pod)) for i in range(3)] == [True, True, False]
    assert why(ledger, pod) == "1/1 CardInsufficientMemory"


def test_r10_a_promise_written_twice_counts_once():
    ledger = ledger_of(a=cards(1))
    charges = {"GPU-a0": Charge(slots=1, mem_mib=1000, core_pct=10)}
    ledger.promise("u", "a", charges)
    ledger.promise("u", "a", charges)
    assert used(ledger)["GPU-a0"] == charges["GPU-a0"]


def test_r12_an_unregistered_card_harms_nobody_and_counts_when_it_is_back():
    ledger = ledger_of(a=cards(2))
    charge = Charge(slots=1, mem_mib=1000, core_pct=10)
    ledger.promise("u", "a", {"GPU-gone": charge, "GPU-a1": charge})
    assert ledger.unknown_cards("u") == ("GPU-gone",)
    assert used(ledger) == {"GPU-a0": Charge(), "GPU-a1": charge}
    ledger.set_node("a", [*cards(2), Card(uuid="GPU-gone", index=2, mem_mib=5000, model="x")])
    assert used(ledger)["GPU-gone"] == charge
    ledger.release("u")
    assert set(used(ledger).values()) == {Charge()}


def test_promises_seen_before_their_node_count_when_it_registers():
    ledger = Ledger()
    ledger.promise("u", "a", {"GPU-a0": Charge(slots=1, mem_mib=40 * GIB, core_pct=0)})
    ledger.set_node("a", cards(1))
    assert run(ledger, "v", apps(ask(1))) is None
    ledger.remove_node("a")
    ledger.set_node("a", cards(1))
    assert used(ledger)["GPU-a0"].mem_mib == 40 * GIB


def test_rows_are_used_again_without_traces():
    ledger = Ledger(rows=1)
    for i in range(20):
        ledger.set_node(f"n{i}", cards(3, node=str(i)))
        ledger.promise(f"u{i}", f"n{i}", {f"GPU-{i}2": Charge(slots=1, mem_mib=5, core_pct=1)})
        if i >= 2:
            ledger.remove_node(f"n{i - 2}")
    assert ledger.nodes() == ["n18", "n19"]
    assert ledger.size <= 4
    ledger.set_node("new", cards(1, node="new"))
    assert used(ledger, "new") == {"GPU-new0": Charge()}
    assert decide(ledger, apps(ask(1)), Offer.of(["n3"])) is None


def test_c1_effective_memory_is_the_larger_of_init_and_apps():
    ledger = ledger_of(a=cards(1, mem=24 * GIB))
    pod = PodRequest(containers=(ask(20 * GIB), ask(10 * GIB)), kinds=(Kind.INIT, Kind.APP))
    choice = run(ledger, "u", pod)
    assert used(ledger)["GPU-a0"] == Charge(slots=1, mem_mib=20 * GIB)
    after = fold(choice.shares, pod.kinds, initialised=True)
    assert after == {"GPU-a0": Charge(slots=1, mem_mib=10 * GIB)}


@pytest.mark.parametrize(
    ("kinds", "mib", "most"),
    [
        ((Kind.SIDECAR, Kind.APP), (5, 10), 15),
        ((Kind.SIDECAR, Kind.INIT, Kind.APP), (5, 20, 10), 25),  # init runs beside it
        ((Kind.INIT, Kind.SIDECAR, Kind.APP), (20, 5, 10), 20),  # init was before it
        ((Kind.INIT, Kind.INIT, Kind.APP), (7, 9, 8), 9),
        ((Kind.APP, Kind.APP), (7, 9), 16),
    ],
)
def test_effective_request_follows_the_life_of_the_containers(kinds, mib, most):
    shares = tuple((Share(uuid="g", mem_mib=m, core_pct=0),) for m in mib)
    assert fold(shares, kinds)["g"].mem_mib == most
    # The card with exactly that much takes the pod; one MiB less does not.
    pod = PodRequest(containers=tuple(ask(m) for m in mib), kinds=kinds)
    assert run(ledger_of(a=cards(1, mem=most)), "u", pod)
    assert run(ledger_of(a=cards(1, mem=most - 1)), "u", pod) is None


def test_containers_that_do_not_fit_together_are_told_so():
    ledger = ledger_of(a=cards(1, mem=10))
    pod = apps(ask(6), ask(6))
    assert run(ledger, "u", pod) is None
    assert why(ledger, pod) == "1/1 AllocatedCardsInsufficientRequest"


def test_devices_of_a_container_come_in_the_order_of_the_cards():
    ledger = Ledger()
    ledger.set_node(
        "a",
        [
            Card(uuid="GPU-z", index=0, mem_mib=100, model="m"),
            Card(uuid="GPU-b", index=2, mem_mib=100, model="m"),
            Card(uuid="GPU-y", index=1, mem_mib=100, model="m"),
        ],
    )
    # The emptiest card is the last one: chosen first, listed last.
    ledger.promise("u", "a", {"GPU-z": Charge(slots=2, mem_mib=20), "GPU-y": Charge(slots=1)})
    choice = run(ledger, "v", apps(ask(10, count=3)))
    assert [share.uuid for share in choice.shares[0]] == ["GPU-z", "GPU-y", "GPU-b"]


def test_one_container_never_gets_the_same_card_twice():
    ledger = ledger_of(a=cards(3))
    choice = run(ledger, "u", apps(ask(10, count=3)))
    assert len({share.uuid for share in choice.shares[0]}) == 3


def test_containers_without_cards_stay_empty_in_the_list():
    ledger = ledger_of(a=cards(1))
    none = Request(count=0, mem_mib=0)
    choice = run(ledger, "u", apps(none, ask(3000, cores=30), none))
    assert encode_pod_shares(choice.shares) == ";GPU-a0,NVIDIA,3000,30:;;"


def test_percentage_is_of_the_card_that_is_taken():
    ledger = ledger_of(a=cards(1, mem=40961))
    choice = run(ledger, "u", apps(ask(pct=50, cores=10)))
    assert choice.shares[0][0].mem_mib == 20480


@pytest.mark.parametrize(
    ("change", "pod", "word"),
    [
        ({"healthy": False}, apps(ask(1)), "CardNotHealth"),
        ({"mode": "mig"}, apps(ask(1)), "ModeNotFit"),
        ({}, apps(ask(1), constraint=Constraint(use_types=("h100",))), "CardTypeMismatch"),
        ({}, apps(ask(1), constraint=Constraint(nouse_types=("a100",))), "CardTypeMismatch"),
        ({}, apps(ask(1), constraint=Constraint(use_uuids=("GPU-x",))), "CardUuidMismatch"),
        ({}, apps(ask(1), constraint=Constraint(nouse_uuids=("GPU-a0",))), "CardUuidMismatch"),
        ({"mem": 100}, apps(ask(101)), "CardInsufficientMemory"),
        ({"core_pct": 20}, apps(ask(1, cores=21)), "CardInsufficientCore"),
        ({"core_pct": 0}, apps(ask(1)), "CardComputeUnitsExhausted"),
        ({"slots": 0}, apps(ask(1)), "CardTimeSlicingExhausted"),
    ],
)
def test_reason_words(change, pod, word):
    ledger = ledger_of(a=cards(1, **change))
    assert run(ledger, "u", pod) is None
    assert why(ledger, pod) == f"1/1 {word}"


def test_cordoned_card_takes_no_new_pods_and_keeps_its_own():
    ledger = ledger_of(a=cards(2))
    run(ledger, "u", apps(ask(5)), "a")
    ledger.set_node("a", cards(2), ["GPU-a0", "GPU-a1", "GPU-unknown"])
    assert why(ledger, apps(ask(5))) == "2/2 CardCordoned"
    assert sum(charge.mem_mib for charge in used(ledger).values()) == 5  # N6


def test_exclusive_needs_an_unused_card_and_keeps_others_away():
    ledger = ledger_of(a=cards(1))
    run(ledger, "u", apps(ask(1)))
    assert why(ledger, apps(ask(1, cores=100))) == "1/1 ExclusiveDeviceAllocateConflict"
    ledger.release("u")
    assert run(ledger, "v", apps(ask(1, cores=100)))
    assert run(ledger, "w", apps(ask(1))) is None
    assert why(ledger, apps(ask(1))) == "1/1 CardComputeUnitsExhausted"


def test_reasons_are_counted_over_cards_and_sorted():
    found = cards(8, mem=100)
    ledger = ledger_of(a=[*found[:2], *(c for c in cards(8, mem=100, model="T4")[2:])])
    pod = apps(ask(101), constraint=Constraint(use_types=("a100",)))
    assert why(ledger, pod) == "2/8 CardInsufficientMemory, 6/8 CardTypeMismatch"


def test_only_what_preemption_can_mend_is_left_open():
    ledger = ledger_of(full=cards(1, mem=10, node="f"), other=cards(1, node="o", model="T4"))
    run(ledger, "u", apps(ask(10)), "full")
    pod = apps(ask(5), constraint=Constraint(use_types=("A100",)))
    reasons = explain(ledger, pod, ["full", "other", "bare"])
    assert reasons.failed == {
        "full": "1/1 CardInsufficientMemory",
        "other": "1/1 CardTypeMismatch",
        "bare": NO_CARDS,
    }
    assert set(reasons.unresolvable) == {"other", "bare"}


@pytest.mark.parametrize(("policy", "node"), [("binpack", "busy"), ("spread", "idle")])
def test_node_policy(policy, node):
    ledger = ledger_of(idle=cards(1, node="i"), busy=cards(1, node="b"))
    run(ledger, "u", apps(ask(5)), "busy")
    assert run(ledger, "v", apps(ask(5), node_policy=policy)).node == node


@pytest.mark.parametrize(("policy", "uuid"), [("binpack", "GPU-a0"), ("spread", "GPU-a1")])
def test_card_policy(policy, uuid):
    ledger = ledger_of(a=cards(2))
    run(ledger, "u", apps(ask(5), constraint=Constraint(use_uuids=("GPU-a0",))))
    choice = run(ledger, "v", apps(ask(5), card_policy=policy))
    assert choice.shares[0][0].uuid == uuid


def test_only_offered_nodes_are_chosen_even_beyond_the_first_tries():
    ledger = Ledger()
    for i in range(50):
        ledger.set_node(f"n{i}", cards(1, node=str(i)))
        if i:
            run(ledger, f"u{i}", apps(ask(100 + i)), f"n{i}")
    assert run(ledger, "v", apps(ask(5)), "n0").node == "n0"
    several = apps(ask(5), ask(6))
    assert run(ledger, "w", several, "n0", "n00").node == "n0"


def test_a_name_that_is_part_of_another_is_not_taken_for_it():
    ledger = ledger_of(n1=cards(1, node="x"))
    assert run(ledger, "u", apps(ask(5)), "n11", "an1") is None


def test_nothing_registered_fits_nothing():
    ledger = Ledger()
    assert run(ledger, "u", apps(ask(5)), "a") is None
    assert why(ledger, apps(ask(5))) == NO_CARDS
