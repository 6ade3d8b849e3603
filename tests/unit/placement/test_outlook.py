"""What is kept of a request from one decision to the next, against what is computed anew."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testbed.stack.model import Card, Request
from testbed.stack.placement import Kind, PodRequest
from testbed.stack.placement import ledger as ledger_module
from testbed.stack.placement import nodes as nodes_module
from testbed.stack.placement import outlook as outlook_module
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.fit import bonus, may_fit
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.outlook import Outlook, outlook
from testbed.stack.placement.single import may_fit_row

from .chance import some_cards, some_pod

NODES = 12


def change(rng, ledger, uids):
    """Do to a ledger one of the things that happen to a cluster."""
    number = rng.randrange(NODES)
    node = f"node-{number}"
    what = rng.random()
    if what < 0.05 or node not in ledger.nodes():
        ledger.set_node(node, some_cards(rng, number))
    elif what < 0.08:
        ledger.remove_node(node)
    elif what < 0.3 and uids:
        ledger.release(uids.pop(rng.randrange(len(uids))))
    else:
        uid = str(rng.random())
        some = rng.sample(ledger.cards_of(node), 1)
        charge = Charge(slots=1, mem_mib=rng.choice((500, 4000)), core_pct=rng.choice((0, 10, 90)))
        ledger.promise(uid, node, {card.uuid: charge for card in some})
        uids.append(uid)


def run(rng, steps):
    """Change a ledger again and again; return how often what was kept was right, and wrong."""
    ledger, uids = Ledger(), []
    for i in range(NODES):
        ledger.set_node(f"node-{i}", some_cards(rng, i))
    pods = [some_pod(rng) for _ in range(6)]
    right = wrong = 0
    for _ in range(steps):
        for _ in range(rng.choice((0, 1, 2, 9))):
            change(rng, ledger, uids)
        pod = rng.choice(pods)
        fresh = Outlook(pod)
        fresh.update(ledger)
        if np.array_equal(outlook(ledger, pod).key, fresh.key):
            right += 1
        else:
            wrong += 1
        mask = may_fit(ledger, pod)
        rows = range(ledger.size)
        assert [may_fit_row(ledger, pod, row) for row in rows] == mask.tolist()
        assert (fresh.key > -np.inf).tolist() == mask.tolist()
    return right, wrong


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("few", "many", "kept"), [(4, 256, 4096), (0, 256, 4096), (1, 1, 8)])
def test_what_is_kept_is_what_would_be_found(seed, few, many, kept, monkeypatch):
    monkeypatch.setattr(outlook_module, "_FEW", few)
    monkeypatch.setattr(outlook_module, "_MANY", many)
    monkeypatch.setattr(ledger_module, "_CHANGES", kept)
    right, wrong = run(random.Random(seed), 150)
    assert (right, wrong) == (150, 0)


def test_a_change_that_is_not_noted_would_be_seen(monkeypatch):
    monkeypatch.setattr(Ledger, "_note", lambda *_: None)
    _, wrong = run(random.Random(1), 150)
    assert wrong > 10


def test_only_so_many_requests_are_kept(monkeypatch):
    monkeypatch.setattr(outlook_module, "_KEPT", 3)
    ledger, rng = Ledger(), random.Random(1)
    ledger.set_node("node-0", some_cards(rng, 0))
    pods = [some_pod(rng) for _ in range(5)]
    first = [outlook(ledger, pod) for pod in pods]
    assert len(ledger.outlooks) == 3
    assert outlook(ledger, pods[4]) is first[4]
    assert outlook(ledger, pods[0]) is not first[0]


def test_nodes_that_are_alike_score_the_same():
    ledger = Ledger()
    for i in range(37):  # no multiple of what a processor adds at once
        cards = [Card(uuid=f"GPU-{i}-{j}", index=j, mem_mib=81050, model="x") for j in range(7)]
        ledger.set_node(f"node-{i}", cards)
        charge = Charge(slots=1, mem_mib=1237, core_pct=7)
        ledger.promise(f"a-{i}", f"node-{i}", {f"GPU-{i}-0": charge})
        ledger.promise(f"b-{i}", f"node-{i}", {f"GPU-{i}-1": charge})
    pod = PodRequest(containers=(Request(count=1, mem_mib=777, core_pct=3),), kinds=(Kind.APP,))
    assert len(set(outlook(ledger, pod).key.tolist())) == 1
    ledger.open_books()
    ledger.close_books()
    ledger.open_books()  # all at once
    ledger.release("a-5")
    ledger.promise("a-5", "node-5", {"GPU-5-0": charge})
    assert len(set(outlook(ledger, pod).key.tolist())) == 1


def test_few_kinds_of_nodes_and_many_get_exactly_the_same_bonus(monkeypatch):
    rng = random.Random(7)
    few, many = Ledger(), Ledger()
    for node in range(NODES):
        cards = some_cards(rng, node)
        few.set_node(f"n{node}", cards)
        many.set_node(f"n{node}", cards)
    pods = [some_pod(rng) for _ in range(200)]
    found = [bonus(few, pod) for pod in pods]
    assert few.few_kinds()
    monkeypatch.setattr(nodes_module, "_FEW_KINDS", 0)
    for pod, added in zip(pods, found, strict=True):
        assert np.array_equal(bonus(many, pod), added)
    assert not many.few_kinds()
