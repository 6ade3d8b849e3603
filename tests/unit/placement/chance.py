"""Cards and pods by chance, of all kinds that decide differently."""

from __future__ import annotations

import random

from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind, PodRequest
from testbed.stack.policy import Weights

POLICIES = (
    *("binpack", "spread", "mutex", "numa"),
    *("numa,binpack", "mutex,spread", "mutex,binpack,numa"),
)


def some_cards(rng: random.Random, node: int) -> list[Card]:
    """Return the cards of a node; those of every other one differ in their sizes."""
    alike = rng.random() < 0.5
    return [
        Card(
            uuid=f"GPU-{node}-{j}",
            index=j,
            slots=10 if alike else rng.choice((1, 2, 10)),
            mem_mib=16384 if alike else rng.choice((16384, 24577, 81920)),
            core_pct=100 if alike else rng.choice((100, 200)),
            model=rng.choice(("NVIDIA A100", "NVIDIA-Tesla T4")),
            numa=rng.randint(-1, 2),
            healthy=rng.random() < 0.95,
        )
        for j in range(rng.choice((1, 2, 4, 8, 8, 9, 16)))
    ]


def some_request(rng: random.Random) -> Request:
    """Return a container's request: of none, in MiB or in percent, now and then of too much."""
    percent = rng.choice((None, None, 10, 33, 60, 100))
    return Request(
        count=rng.choice((0, 1, 1, 1, 1, 2, 3)),
        mem_mib=rng.choice((1, 1000, 8000, 20000, 3_000_000_000)) if percent is None else None,
        mem_pct=percent,
        core_pct=rng.choice((0, 0, 1, 10, 30, 100)),
    )


def some_pod(rng: random.Random) -> PodRequest:
    """Return a pod that a node decides alone: no policy of it looks at links."""
    kinds = (*rng.choices((Kind.INIT, Kind.SIDECAR), k=rng.randint(0, 2)),)
    kinds += (Kind.APP,) * rng.randint(1, 3)
    return PodRequest(
        containers=(*(some_request(rng) for _ in kinds[1:]), Request(count=1, mem_mib=100)),
        kinds=kinds,
        constraint=Constraint(
            use_types=rng.choice(((), (), ("a100",))),
            use_uuids=rng.choice(((), (), (), ("GPU-0-0", "GPU-3-0", "GPU-5-0"))),
            nouse_uuids=rng.choice(((), (), ("GPU-0-0", "GPU-1-1"))),
            numa_bind=rng.random() < 0.3,
        ),
        node_policy=rng.choice(("binpack", "spread")),
        card_policy=rng.choice(POLICIES),
        weights=rng.choice((Weights(), Weights(slot=0, core=500, memory=3000))),
    )
