"""One node in plain numbers against many nodes at once: the same cards."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind, PodRequest
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.fit import place, shares_of
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.single import place_row, single
from testbed.stack.policy import Weights

POLICIES = ("binpack", "spread", "mutex", "numa", "mutex,binpack,numa", "numa,binpack")


def some_ledger(rng):
    ledger = Ledger()
    for i in range(6):
        alike = rng.random() < 0.5
        cards = [
            Card(
                uuid=f"GPU-{i}-{j}",
                index=j,
                slots=10 if alike else rng.choice((1, 2, 10)),
                mem_mib=16384 if alike else rng.choice((16384, 24577, 81920)),
                core_pct=100 if alike else rng.choice((100, 200)),
                model=rng.choice(("NVIDIA A100", "NVIDIA-Tesla T4")),
                numa=rng.randint(-1, 2),
                healthy=rng.random() < 0.95,
            )
            for j in range(rng.choice((1, 2, 4, 8, 9, 16)))
        ]
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


def some_request(rng):
    if rng.random() < 0.2:
        return Request(count=0, mem_mib=0)
    percent = rng.choice((None, None, 10, 33, 100))
    return Request(
        count=rng.choice((1, 1, 1, 2, 3)),
        mem_mib=rng.choice((1, 1000, 8000)) if percent is None else None,
        mem_pct=percent,
        core_pct=rng.choice((0, 0, 10, 30, 100)),
    )


def some_pod(rng):
    kinds = (*rng.choices((Kind.INIT, Kind.SIDECAR), k=rng.randint(0, 2)),)
    kinds += (Kind.APP,) * rng.randint(1, 3)
    return PodRequest(
        containers=(*(some_request(rng) for _ in kinds[1:]), Request(count=1, mem_mib=100)),
        kinds=kinds,
        constraint=Constraint(
            use_types=rng.choice(((), (), ("a100",))),
            nouse_uuids=rng.choice(((), (), ("GPU-0-0", "GPU-1-1"))),
            numa_bind=rng.random() < 0.3,
        ),
        card_policy=rng.choice(POLICIES),
        weights=rng.choice((Weights(), Weights(slot=0, core=500, memory=3000))),
    )


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


def test_links_are_left_to_many_at_once():
    pod = PodRequest(containers=(Request(count=2, mem_mib=1),), kinds=(Kind.APP,))
    assert single(pod)
    linked = PodRequest(
        containers=pod.containers, kinds=pod.kinds, card_policy="topology-aware,binpack"
    )
    assert not single(linked)
