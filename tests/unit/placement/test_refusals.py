"""Reasons that are kept from one attempt to the next, against those of a fresh ledger's eye."""

from __future__ import annotations

import json
import random

import pytest

from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind, PodRequest
from testbed.stack.placement import reasons as reasons_module
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.reasons import explain

NODES = 14


def set_node(rng, ledger, node):
    cards = [
        Card(
            uuid=f"GPU-{node}-{j}",
            index=j,
            slots=rng.choice((1, 10)),
            mem_mib=rng.choice((16384, 81920)),
            model=rng.choice(("NVIDIA A100", "NVIDIA-Tesla T4")),
            healthy=rng.random() < 0.9,
        )
        for j in range(rng.choice((1, 4, 8)))
    ]
    ledger.set_node(node, cards, {cards[0].uuid} if rng.random() < 0.1 else ())


def some_pod(rng):
    return PodRequest(
        containers=(
            Request(count=rng.choice((1, 3)), mem_mib=rng.choice((9000, 90000)), core_pct=40),
            Request(count=1, mem_mib=rng.choice((100, 8000)), core_pct=30),
        ),
        kinds=(Kind.APP, Kind.APP),
        constraint=Constraint(use_types=rng.choice(((), ("a100",)))),
        card_policy=rng.choice(("spread", "mutex")),
    )


def told(reasons):
    """Everything that an answer says, as a scheduler reads it."""
    failed, lost = (json.loads(each.json()) for each in (reasons.failed, reasons.unresolvable))
    assert failed == dict(reasons.failed)
    assert lost == dict(reasons.unresolvable)
    return failed, lost, reasons.counts


def run(rng, steps):
    """Explain pods while a cluster changes; return how often what was kept was right, and wrong."""
    ledger, uids = Ledger(), []
    for i in range(NODES):
        set_node(rng, ledger, f"node-{i}")
    pods = [some_pod(rng) for _ in range(4)]
    right = wrong = 0
    for _ in range(steps):
        for _ in range(rng.choice((0, 0, 1, 3))):
            node = f"node-{rng.randrange(NODES)}"
            what = rng.random()
            if what < 0.04 or not ledger.cards_of(node):
                set_node(rng, ledger, node)
            elif what < 0.08:
                ledger.remove_node(node)
            elif what < 0.4 and uids:
                ledger.release(uids.pop(rng.randrange(len(uids))))
            else:
                uids.append(str(rng.random()))
                card = rng.choice(ledger.cards_of(node))
                charge = Charge(slots=1, mem_mib=rng.choice((900, 40000)), core_pct=50)
                ledger.promise(uids[-1], node, {card.uuid: charge})
        names = [f"node-{i}" for i in range(NODES)]
        if rng.random() < 0.3:
            names = [*rng.sample(names, rng.randint(8, NODES)), "stranger"]
        else:
            names = ledger.nodes()
        rng.shuffle(names)
        pod = rng.choice(pods)
        room = rng.choice((UNBOUNDED, UNBOUNDED, Amount(mem_mib=9000), Amount(core_pct=30)))
        kept = told(explain(ledger, pod, names, room))
        others, ledger.refusals = ledger.refusals, {}
        fresh = told(explain(ledger, pod, names, room))
        ledger.refusals = others
        assert set(kept[0]) == set(names)
        right, wrong = right + (kept == fresh), wrong + (kept != fresh)
    return right, wrong


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("many", "kept"), [(512, 8), (2, 8), (512, 1)])
def test_kept_reasons_are_those_of_now(seed, many, kept, monkeypatch):
    monkeypatch.setattr(reasons_module, "_MANY", many)
    monkeypatch.setattr(reasons_module, "_KEPT", kept)
    assert run(random.Random(seed), 120) == (120, 0)


def test_a_change_that_is_not_noted_would_be_seen(monkeypatch):
    monkeypatch.setattr(Ledger, "_note", lambda *_: None)
    _, wrong = run(random.Random(1), 120)
    assert wrong > 0


def test_the_same_answer_is_not_written_twice():
    rng, ledger = random.Random(1), Ledger()
    for i in range(NODES):
        set_node(rng, ledger, f"node-{i}")
    pod = some_pod(rng)
    first = explain(ledger, pod, ledger.nodes())
    again = explain(ledger, pod, ledger.nodes()[::-1])
    assert again.failed.json() is first.failed.json()
    twice = [*ledger.nodes()[1:], ledger.nodes()[1]]  # as many names, and one is missing
    other = explain(ledger, pod, twice)
    assert ledger.nodes()[0] not in json.loads(other.failed.json())
