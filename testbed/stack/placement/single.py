"""A pod on one node, in plain numbers.

The first candidates are looked at one by one, and on eight cards numpy's calls cost more
than the work. The same rules as ``fit.place``, which takes many nodes at once, and the
same cards; a property test holds one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.stack.model import Card, PodShares, Request, Share
from testbed.stack.placement.choose import NUMA_NODES, PPM
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.fit import (
    EXCLUSIVE_PCT,
    mutex_of,
    policy_of,
    type_mask,
)
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quantities import INT32_MAX
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
    columns = _columns(ledger, pod, row, cards)
    running = _Left(
        ledger.slots_free[row].tolist(),
        ledger.mem_free[row].tolist(),
        ledger.core_free[row].tolist(),
    )
    # What is left at least matters where something is given back again.
    peak = not room.unbounded and Kind.INIT in pod.kinds
    before = None if room.unbounded else running.copy()
    least = running.copy() if peak else running
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
        if peak:
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
    if before is not None and not _within(before, least, room):
        return None
    return tuple(shares)


def may_fit_row(ledger: Ledger, pod: PodRequest, row: int) -> bool:
    """Tell of one row what ``fit.may_fit`` tells of many."""
    cards = ledger.cards_of(ledger.name_of(row))
    columns = _columns(ledger, pod, row, cards)
    mem, core = ledger.mem_open[row].tolist(), ledger.core_open[row].tolist()
    alone: set[int] = set()
    mutex = len(pod.together) > 1 and policy_of(pod.card_policy).mutex
    for request, at_once in pod.together.items():
        needs, cores = _needs(request, cards), max(request.core_pct, 1)
        fits = [c for c in columns if mem[c] >= min(needs[c], INT32_MAX) and core[c] >= cores]
        count = request.count
        if mutex_of(pod, request):
            free = ledger.slots_free[row].tolist()
            fits = [c for c in fits if free[c] == cards[c].slots]
            count = max(count, at_once)
        if pod.constraint.numa_bind and request.count > 1:
            near = [cards[c].numa for c in fits]
            fits = [c for c in fits if near.count(cards[c].numa) >= request.count]
        if len(fits) < count:
            return False
        if mutex:
            alone.update(fits)
    return not mutex or len(alone) >= sum(pod.together.values())


def _columns(ledger: Ledger, pod: PodRequest, row: int, cards: Sequence[Card]) -> list[int]:
    """Return the cards that the pod accepts, whatever is free of them."""
    here = slice(row, row + 1)
    usable = ledger.usable[row]
    by_type = type_mask(ledger, pod, here)
    if by_type is not None:
        usable = usable & by_type[0]
    columns: list[int] = usable.nonzero()[0].tolist()
    wish = pod.constraint
    if wish.use_uuids:
        columns = [column for column in columns if cards[column].uuid in wish.use_uuids]
    if wish.nouse_uuids:
        columns = [column for column in columns if cards[column].uuid not in wish.nouse_uuids]
    return columns


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
    by_slot, by_core, by_mem = weigh.slot, weigh.core, weigh.memory
    left_slots, left_mem, left_core, asked = left.slots, left.mem, left.core, request.core_pct
    for column in fits:
        card = cards[column]
        total, cores, mem = card.slots, card.core_pct, card.mem_mib
        full = (
            by_slot * ((total - left_slots[column] + 1) * PPM // (total or 1))
            + by_core * ((cores - left_core[column] + asked) * PPM // (cores or 1))
            + by_mem * ((mem - left_mem[column] + needs[column]) * PPM // (mem or 1))
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


def _within(before: _Left, least: _Left, room: Amount) -> bool:
    """Tell whether what is taken at most of all cards together is within the quota."""
    mem = sum(before.mem) - sum(least.mem)
    core = sum(before.core) - sum(least.core)
    if room.mem_mib is not None and mem and mem > room.mem_mib:
        return False
    return room.core_pct is None or not core or core <= room.core_pct
