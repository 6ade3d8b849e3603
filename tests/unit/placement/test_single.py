"""One node in plain numbers against many nodes at once: the same cards."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testbed.stack.model import Request
from testbed.stack.placement import Kind, PodRequest
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.fit import felt, place, shares_of
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.single import place_row, single

from .chance import some_cards, some_pod


def some_ledger(rng):
    ledger = Ledger()
    for i in range(6):
        cards = some_cards(rng, i)
        ledger.set_node(f"node-{i}", cards, {c.uuid for c in cards if rng.random() < 0.05})
        for j, card in enumerate(cards):
            if rng.random() < 0.6:
                charge = Charge(
                    slots=rng.randint(1, 2),
                    mem_mib=rng.choice((500, 4000, 20000)),  # some hold more than there is
                    core_pct=rng.choice((0, 10, 50, 100)),
                )
                ledger.promise(f"old-{i}-{j}", f"node-{i}", {card.uuid: charge})
    return ledger


@pytest.mark.parametrize("seed", range(4))
def test_a_node_gives_the_same_cards_either_way(seed):
    rng = random.Random(seed)
    fitted = refused = 0
    for _ in range(60):
        ledger = some_ledger(rng)
        for _ in range(4):
            pod = some_pod(rng)
            room = rng.choice((UNBOUNDED, UNBOUNDED, Amount(mem_mib=9000, core_pct=40)))
            assert single(pod)
            placement = place(ledger, pod, np.arange(6), room)
            for row in range(6):
                found = place_row(ledger, pod, row, room)
                if placement.good[row]:
                    assert found == shares_of(ledger, pod, placement, row, row)
                    fitted += 1
                else:
                    assert found is None
                    refused += 1
    assert fitted > 200 and refused > 200


def test_a_quota_that_a_pod_cannot_reach_is_none():
    rng = random.Random(7)
    free = bound = less = 0
    for _ in range(60):
        ledger, pod = some_ledger(rng), some_pod(rng)
        room = Amount(
            mem_mib=rng.choice((None, -5, 0, 9000, 60_000, 500_000)),
            core_pct=rng.choice((None, 0, 40, 200)),
        )
        placement = place(ledger, pod, np.arange(6), room)
        if felt(ledger, pod, room).unbounded:
            assert placement.good.tolist() == placement.fits.tolist()
            free += not room.unbounded
        else:
            assert felt(ledger, pod, room) is room
            bound += 1
            less += bool((placement.fits & ~placement.good).any())
    assert free > 5 and bound > 5 and less > 2


def test_links_are_left_to_many_at_once():
    pod = PodRequest(containers=(Request(count=2, mem_mib=1),), kinds=(Kind.APP,))
    assert single(pod)
    linked = PodRequest(
        containers=pod.containers, kinds=pod.kinds, card_policy="topology-aware,binpack"
    )
    assert not single(linked)
