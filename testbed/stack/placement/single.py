"""A pod on one node, in plain numbers.

The first candidates are looked at one by one, and on eight cards numpy's calls cost more
than the work. The same rules as ``fit.place``, which takes many nodes at once, and the
same cards; a property test holds one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from testbed.stack.model import Card, PodShares, Request, Share
from testbed.stack.placement.choose import NUMA_NODES, PPM
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.fit import EXCLUSIVE_PCT, allowed, policy_of
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest
from testbed.stack.policy import CardPolicy, Weights


@dataclass(slots=True)
class _Left:
    """What is left of a node's cards while containers are being placed."""

    slots: list[int]
    mem: list[int]
    core: list[int]

    def copy(self) -> _Left:
        return _Left(self.slots.copy(), self.mem.copy(), self.core.copy())


def single(pod: PodRequest) -> bool:
    """Tell whether ``place_row`` can place a pod: links between cards are not looked at."""
    return not policy_of(pod.card_policy).linked


def place_row(
    ledger: Ledger, pod: PodRequest, row: int, room: Amount = UNBOUNDED
) -> PodShares | None:
    """Return what each container gets on a node; None if the pod does not fit there.

    Args:
        ledger: The cards.
        pod: What it asks for; one that ``single`` tells of.
        row: The node's row.
        room: What its namespace's quota leaves it.
    """
    policy, cards = policy_of(pod.card_policy), ledger.cards_of(ledger.name_of(row))
    usable = ledger.usable[row].tolist()
    wanted = allowed(ledger, pod, np.array([row], np.int64))
    if wanted is not None:
        usable = [a and b for a, b in zip(usable, wanted[0].tolist(), strict=True)]
    columns = [column for column in range(len(cards)) if usable[column]]
    running = _Left(
        ledger.slots_free[row].tolist(),
        ledger.mem_free[row].tolist(),
        ledger.core_free[row].tolist(),
    )
    least = None if room.unbounded else running.copy()
    shares: list[tuple[Share, ...]] = []
    for request, kind in zip(pod.containers, pod.kinds, strict=True):
        if not request.count:
            shares.append(())
            continue
        left = running.copy() if kind is Kind.INIT else running
        needs = _needs(request, cards)
        fits = _fitting(request, left, columns, needs, cards, policy)
        chosen = None
        if len(fits) >= request.count:
            costs = _costs(request, pod.weights, left, fits, needs, cards, policy)
            chosen = _choose(policy, pod.constraint.numa_bind, request.count, costs, cards)
        if chosen is None:
            return None
        for column in chosen:
            left.slots[column] -= 1
            left.mem[column] -= needs[column]
            left.core[column] -= request.core_pct
        if least is not None:
            least.mem = list(map(min, least.mem, left.mem))
            least.core = list(map(min, least.core, left.core))
        shares.append(
            tuple(
                Share(
                    uuid=cards[column].uuid,
                    vendor=cards[column].vendor,
                    mem_mib=needs[column],
                    core_pct=request.core_pct,
                )
                for column in chosen
            )
        )
    if least is not None and not _within(ledger, row, least, room):
        return None
    return tuple(shares)


def _needs(request: Request, cards: Sequence[Card]) -> list[int]:
    if request.mem_mib is not None:
        return [request.mem_mib] * len(cards)
    return [card.mem_mib * (request.mem_pct or 0) // 100 for card in cards]


def _fitting(
    request: Request,
    left: _Left,
    columns: list[int],
    needs: list[int],
    cards: Sequence[Card],
    policy: CardPolicy,
) -> list[int]:
    cores = max(request.core_pct, 1)
    slots, mem, core = left.slots, left.mem, left.core
    fits = [c for c in columns if slots[c] > 0 and mem[c] >= needs[c] and core[c] >= cores]
    if policy.mutex or request.core_pct >= EXCLUSIVE_PCT:
        fits = [c for c in fits if slots[c] == cards[c].slots]
    return fits


def _costs(
    request: Request,
    weigh: Weights,
    left: _Left,
    fits: list[int],
    needs: list[int],
    cards: Sequence[Card],
    policy: CardPolicy,
) -> list[tuple[int, int]]:
    """Return what each fitting card costs, with its column; the smallest goes first."""
    costs = []
    for column in fits:
        card = cards[column]
        slots = card.slots - left.slots[column] + 1
        core = card.core_pct - left.core[column] + request.core_pct
        mem = card.mem_mib - left.mem[column] + needs[column]
        full = (
            weigh.slot * (slots * PPM // (card.slots or 1))
            + weigh.core * (core * PPM // (card.core_pct or 1))
            + weigh.memory * (mem * PPM // (card.mem_mib or 1))
        )
        costs.append((-full if policy.fullest else full, column))
    if not policy.tie:
        return costs
    numa = [cards[column].numa for column in fits]
    ranked = []
    for (cost, column), node in zip(costs, numa, strict=True):
        rank = min(max(node, 0), NUMA_NODES - 1)
        if numa.count(node) < request.count:
            rank += NUMA_NODES
        ranked.append((cost * 4 * NUMA_NODES + rank, column))
    return ranked


def _choose(
    policy: CardPolicy,
    bound_to_numa: bool,
    count: int,
    costs: list[tuple[int, int]],
    cards: Sequence[Card],
) -> list[int] | None:
    """Return the columns of the best cards, ascending; None where NUMA nodes forbid."""
    if policy.group or bound_to_numa:
        best: list[tuple[int, int]] | None = None
        spent = 0
        for node in sorted({cards[column].numa for _, column in costs}):
            here = sorted(cost for cost in costs if cards[cost[1]].numa == node)[:count]
            total = sum(cost for cost, _ in here)
            if len(here) == count and (best is None or total < spent):
                best, spent = here, total
        if best is not None:
            return sorted(column for _, column in best)
        if bound_to_numa:
            return None
    if count == 1:
        return [min(costs)[1]]
    return sorted(column for _, column in sorted(costs)[:count])


def _within(ledger: Ledger, row: int, least: _Left, room: Amount) -> bool:
    """Tell whether what is taken at most of all cards together is within the quota."""
    mem = int(ledger.mem_free[row].sum()) - sum(least.mem)
    core = int(ledger.core_free[row].sum()) - sum(least.core)
    if room.mem_mib is not None and mem and mem > room.mem_mib:
        return False
    return room.core_pct is None or not core or core <= room.core_pct
