"""How far a pod is from fitting: what the nearest node lacks, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from testbed.stack.model import Request
from testbed.stack.placement.arrays import Floats, Mask, Rows
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.fit import allowed, card_fits, left_of, memory_need, mutex_of
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLack:
    """A card of the nearest node, and how much it lacks of what one container asks."""

    uuid: str
    slots_free: int
    mem_free_mib: int
    core_free_pct: int
    mem_lack_mib: int
    core_lack_pct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The node that comes nearest.

    Attributes:
        container: Position of the container that does not fit there.
        cards: The cards that come nearest, as many as it asks for.
    """

    node: str
    container: int
    cards: tuple[CardLack, ...]


def nearest(ledger: Ledger, pod: PodRequest, names: list[str]) -> Nearest | None:
    """Return the nearest miss among some nodes; None where none has a card for the pod.

    A card's distance is the sum of what it lacks of memory and of cores, each by the
    card's total, and 1 where no slot is free or it is not to be shared.
    """
    rows = ledger.rows_of(names)
    rows = rows[rows >= 0]
    if not len(rows):
        return None
    accepted = ledger.usable[rows]
    wanted = allowed(ledger, pod, rows)
    if wanted is not None:
        accepted = accepted & wanted
    # The container that is furthest from fitting anywhere is the one to tell of.
    furthest: tuple[float, Nearest] | None = None
    for position, request in enumerate(pod.containers):
        if not request.count or request.count > ledger.width:
            continue
        distance = _distance(ledger, pod, request, rows, accepted)
        order = np.argsort(distance, axis=1, kind="stable")[:, : request.count]
        sums = np.take_along_axis(distance, order, axis=1).sum(axis=1)
        at = int(sums.argmin())
        if not np.isfinite(sums[at]) or (furthest and sums[at] <= furthest[0]):
            continue
        row = int(rows[at])
        cards = tuple(_lack(ledger, request, row, int(c)) for c in np.sort(order[at]))
        found = Nearest(node=ledger.name_of(row), container=position, cards=cards)
        furthest = (float(sums[at]), found)
    return None if furthest is None else furthest[1]


def _distance(
    ledger: Ledger, pod: PodRequest, request: Request, rows: Rows, accepted: Mask
) -> Floats:
    need = memory_need(request, ledger.mem_total[rows])
    slots, total = ledger.slots_free[rows], ledger.slots_total[rows]
    alone = mutex_of(pod, request)
    distance = (
        np.maximum(need - ledger.mem_free[rows], 0) / np.maximum(ledger.mem_total[rows], 1)
        + np.maximum(max(request.core_pct, 1) - ledger.core_free[rows], 0)
        / np.maximum(ledger.core_total[rows], 1)
        + ((slots < total) if alone else (slots <= 0))
    )
    found: Floats = np.where(accepted, distance, np.inf)
    return found


def _lack(ledger: Ledger, request: Request, row: int, column: int) -> CardLack:
    place = (row, column)
    need = int(memory_need(request, ledger.mem_total[row, column : column + 1])[0])
    mem, core = int(ledger.mem_free[place]), int(ledger.core_free[place])
    return CardLack(
        uuid=ledger.cards_of(ledger.name_of(row))[column].uuid,
        slots_free=int(ledger.slots_free[place]),
        mem_free_mib=mem,
        core_free_pct=core,
        mem_lack_mib=max(0, need - mem),
        core_lack_pct=max(0, max(request.core_pct, 1) - core),
    )


def remedies(
    ledger: Ledger, pod: PodRequest, names: list[str], room: Amount = UNBOUNDED
) -> Iterator[str]:
    """Yield changes with which the pod would fit now; each was tried on the ledger."""
    offer = Offer.of(names)
    asking = [i for i, request in enumerate(pod.containers) if request.count]
    if len(asking) != 1:
        return
    request = pod.containers[asking[0]]

    def fits(changed: Request, base: PodRequest = pod) -> bool:
        containers = tuple(changed if r is request else r for r in pod.containers)
        return decide(ledger, replace(base, containers=containers), offer, room) is not None

    mem = _most(ledger, pod, request, names, "mem_free")
    if mem and fits(replace(request, mem_mib=mem, mem_pct=None)):
        yield f"memory of at most {mem} MiB a card"
    core = _most(ledger, pod, request, names, "core_free")
    if 0 < core < request.core_pct and fits(replace(request, core_pct=core)):
        yield f"cores of at most {core} %"
    for count in range(request.count - 1, 0, -1):
        if fits(replace(request, count=count)):
            yield f"{count} {'card' if count == 1 else 'cards'} instead of {request.count}"
            break
    free = replace(pod, constraint=type(pod.constraint)())
    if pod.constraint != free.constraint and fits(request, free):
        yield "no wish for types, uuids or one NUMA node"
    if "mutex" in pod.card_policy and fits(request, replace(pod, card_policy="spread")):
        yield "a card policy that shares cards"
    if not room.unbounded and decide(ledger, pod, offer) is not None:
        yield "a larger quota of the namespace"


def _most(ledger: Ledger, pod: PodRequest, request: Request, names: list[str], what: str) -> int:
    """Return the most memory or cores with which a container finds its cards on one node."""
    rows = ledger.rows_of(names)
    rows = rows[rows >= 0]
    if not len(rows) or request.count > ledger.width:
        return 0
    usable = ledger.usable[rows]
    wanted = allowed(ledger, pod, rows)
    if wanted is not None:
        usable = usable & wanted
    less = (
        replace(request, mem_mib=0, mem_pct=None)
        if what == "mem_free"
        else replace(request, core_pct=0)
    )
    need = memory_need(less, ledger.mem_total[rows])
    total = ledger.slots_total[rows]
    alone = mutex_of(pod, request)
    fits = card_fits(less, left_of(ledger, rows), usable, need, total, mutex=alone)
    free = np.where(fits, getattr(ledger, what)[rows], 0)
    most = -np.sort(-free, axis=1)[:, request.count - 1]
    return int(most.max())
