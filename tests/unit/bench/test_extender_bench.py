"""The bench's comparison with the plain reference: it agrees, and it can disagree."""

from __future__ import annotations

import copy
import random

import pytest

from testbed.lab.bench import madeup
from testbed.lab.bench.extender import Decision, _percentile, _verify
from testbed.stack.codec import encode_pod_shares
from testbed.stack.config import DeviceConfig
from testbed.stack.placement import pod_request
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.effective import Charge, fold
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.reasons import explain


@pytest.fixture
def played():
    """A cluster, decisions of the product on it, and what was reserved."""
    rng = random.Random(3)
    cluster = madeup.make(6, 4, 60, rng)
    ledger = Ledger()
    for name, slots in cluster.reference.nodes.items():
        ledger.set_node(name, [slot.card for slot in slots])
    for uid, (node, charges) in cluster.reference.held.items():
        ledger.promise(
            uid,
            node,
            {u: Charge(slots=s, mem_mib=m, core_pct=c) for u, (s, m, c) in charges.items()},
        )
    decisions, reserved = [], []
    for case, make in madeup.CASES.items():
        for number in range(12):
            pod = make(number, rng)
            request = pod_request(pod, DeviceConfig())
            choice = decide(ledger, request, Offer.of(cluster.names))
            answer = {"NodeNames": [], "FailedNodes": {}}
            if choice is None:
                answer["FailedNodes"] = dict(explain(ledger, request, cluster.names).failed)
            else:
                answer["NodeNames"] = [choice.node]
                uid = pod["metadata"]["uid"]
                reserved.append({"uid": uid, "devices": encode_pod_shares(choice.shares)})
                ledger.promise(uid, choice.node, fold(choice.shares, request.kinds))
            decisions.append(Decision(case=case, pod=pod, seconds=0.0, answer=answer))
    return cluster, decisions, reserved


def test_right_decisions_are_all_the_same(played):
    assert _verify(*played, verify=12) == (36, [])


@pytest.mark.parametrize("what", ["node", "nowhere", "cards", "reason"])
def test_a_wrong_decision_is_a_difference(played, what):
    cluster, decisions, reserved = copy.deepcopy(played)
    last = next(d for d in reversed(decisions) if bool(d.answer["NodeNames"]) is (what != "reason"))
    if what == "node":
        (right,) = last.answer["NodeNames"]
        last.answer["NodeNames"] = [next(n for n in cluster.names if n != right)]
    elif what == "nowhere":
        last.answer["NodeNames"] = []
    elif what == "cards":
        entry = next(e for e in reserved if e["uid"] == last.pod["metadata"]["uid"])
        entry["devices"] = entry["devices"].replace("GPU-", "GPU-x", 1)
    else:
        name = cluster.names[0]
        last.answer["FailedNodes"][name] = "4/4 CardNotHealth"
    verified, differences = _verify(cluster, decisions, reserved, verify=12)
    assert verified == 36
    assert any(last.pod["metadata"]["name"] in text for text in differences)


def test_percentiles_are_of_what_was_measured():
    assert _percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert _percentile([float(i) for i in range(101)], 99) == 99.0


def test_a_pod_that_shall_fit_nowhere_and_is_placed_is_a_difference(played):
    """Its time would be that of a pod that fits."""
    cluster, decisions, reserved = played
    placed = next(d for d in decisions if d.answer["NodeNames"])
    placed.case = "unfit"
    _, differences = _verify(cluster, decisions, reserved, verify=0)
    assert differences == [f"{placed.pod['metadata']['name']}: made to fit nowhere"]
