"""Which nodes a pod fits on, which cards it gets there, and how good that is.

``may_fit`` asks every container on its own: exact for a pod with one asking
container, necessary for one with several. ``place`` walks the containers in order
on the rows it is given, each on what the ones before it left, and is exact.

A card takes a container when it is usable and of a wanted type and uuid, has a
free slot, enough memory and cores; a container that asks for 100 % needs a card
that nobody uses, as every one does under the policy ``mutex``, and one that asks for
0 % needs a card with cores left (HAMi). One container never gets the same card twice;
bound to a NUMA node it needs all of them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from testbed.stack.model import Constraint, PodShares, Request, Share
from testbed.stack.placement.arrays import Floats, Mask, Numbers, Rows, count_true
from testbed.stack.placement.choose import choose, fullness, numa_groups
from testbed.stack.placement.effective import Kind
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quantities import INT32_MAX
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest
from testbed.stack.policy import CardPolicy, card_policy

EXCLUSIVE_PCT = 100


@dataclass(slots=True)
class Left:
    """What is left of the cards of some rows while containers are being placed."""

    slots: Numbers
    mem: Numbers
    core: Numbers

    def copy(self) -> Left:
        return Left(self.slots.copy(), self.mem.copy(), self.core.copy())

    def take(self, picks: Numbers, need: Numbers, core_pct: int) -> None:
        rows = np.arange(len(picks))[:, None]
        self.slots[rows, picks] -= 1
        self.mem[rows, picks] -= need[rows, picks]
        self.core[rows, picks] -= core_pct


@dataclass(frozen=True, slots=True)
class Placement:
    """The outcome of ``place`` for some rows.

    Attributes:
        fits: For each row, whether all containers found their cards.
        picks: For each container the columns, ascending (rows by count); empty
            arrays for containers that ask for nothing. Meaningless where not ``fits``.
        within: Where the namespace's quota has room, too; None without a quota.
    """

    fits: Mask
    picks: tuple[Numbers, ...]
    within: Mask | None = None

    @property
    def good(self) -> Mask:
        """Where the pod may go."""
        return self.fits if self.within is None else self.fits & self.within


def allowed(ledger: Ledger, pod: PodRequest, rows: Rows | slice) -> Mask | None:
    """Return the cards that a pod accepts by vendor, type and uuid; None means all."""
    by_type = type_mask(ledger, pod, rows)
    by_uuid = uuid_mask(ledger, pod.constraint, rows)
    if by_type is None or by_uuid is None:
        return by_uuid if by_type is None else by_type
    return by_type & by_uuid


def type_mask(ledger: Ledger, pod: PodRequest, rows: Rows | slice) -> Mask | None:
    """Return the cards of the pod's vendor and of a wanted type (case-insensitive part
    of the model's name); None means all."""
    constraint, vendor = pod.constraint, pod.vendor
    known = ledger.vendor_ids()
    typed = bool(constraint.use_types or constraint.nouse_types)
    if not typed and vendor in known and len(known) == 1:
        return None
    mask: Mask = ledger.remembered(
        ("type", vendor, constraint.use_types, constraint.nouse_types),
        lambda: _of_type(ledger, constraint, known.get(vendor, -1)),
    )[rows]
    return mask


def _of_type(ledger: Ledger, constraint: Constraint, vendor: int) -> Mask:
    rows = slice(0, ledger.size)
    mask: Mask = ledger.vendor[rows] == vendor
    if not constraint.use_types and not constraint.nouse_types:
        return mask
    models = [model.lower() for model in ledger.models()]
    use = [word.lower() for word in constraint.use_types]
    nouse = [word.lower() for word in constraint.nouse_types]
    wanted = np.array(
        [
            (not use or any(word in model for word in use))
            and not any(word in model for word in nouse)
            for model in models
        ]
        or [False],
        np.bool_,
    )
    mask &= wanted[ledger.model[rows]]
    return mask


def uuid_mask(ledger: Ledger, constraint: Constraint, rows: Rows | slice) -> Mask | None:
    """Return the cards that are named, less those that are named to be left out."""
    if not constraint.use_uuids and not constraint.nouse_uuids:
        return None
    mask = np.full(ledger.present.shape, not constraint.use_uuids, np.bool_)
    for uuid in constraint.use_uuids:
        for place in ledger.places_of(uuid):
            mask[place] = True
    for uuid in constraint.nouse_uuids:
        for place in ledger.places_of(uuid):
            mask[place] = False
    chosen: Mask = mask[rows]
    return chosen


def memory_need(request: Request, mem_total: Numbers) -> Numbers:
    """Return what the container takes of each card, MiB (a percentage is rounded down)."""
    if request.mem_mib is not None:
        return np.broadcast_to(np.int64(request.mem_mib), mem_total.shape)
    need: Numbers = mem_total * (request.mem_pct or 0) // 100
    return need


def card_fits(
    request: Request,
    left: Left,
    usable: Mask,
    need: Numbers,
    slots_total: Numbers,
    *,
    mutex: bool,
) -> Mask:
    """Return the cards that take this container as things stand in ``left``."""
    fits: Mask = usable & (left.slots > 0) & (left.mem >= need)
    fits &= left.core >= max(request.core_pct, 1)
    if mutex or request.core_pct >= EXCLUSIVE_PCT:
        fits &= left.slots == slots_total
    return fits


def left_of(ledger: Ledger, rows: Rows | slice) -> Left:
    """Return what is left of the cards of some rows; not to be changed."""
    return Left(ledger.slots_free[rows], ledger.mem_free[rows], ledger.core_free[rows])


def mutex_of(pod: PodRequest, request: Request) -> bool:
    """Tell whether a container takes only cards that nobody uses."""
    return policy_of(pod.card_policy).mutex or request.core_pct >= EXCLUSIVE_PCT


def may_fit(ledger: Ledger, pod: PodRequest, rows: Rows | slice | None = None) -> Mask:
    """Return, for every row or for some, whether each container on its own finds its cards."""
    if rows is None:
        rows = slice(0, ledger.size)
    accepted = allowed(ledger, pod, rows)
    mutex = len(pod.together) > 1 and policy_of(pod.card_policy).mutex
    result: Mask | None = None
    alone: Mask | None = None  # under mutex: cards that take any of the containers
    for request, at_once in pod.together.items():
        need: NDArray[np.int32] | int = min(request.mem_mib or 0, INT32_MAX)
        if request.mem_mib is None:
            need = _percent_need(ledger, request.mem_pct or 0)[rows]
        fits: Mask = ledger.mem_open[rows] >= need
        if accepted is not None:
            fits &= accepted
        if request.core_pct > 1:
            fits &= ledger.core_open[rows] >= request.core_pct
        count = request.count
        if mutex_of(pod, request):
            fits &= ledger.slots_free[rows] == ledger.slots_total[rows]
            count = max(count, at_once)  # each takes cards of its own
        if pod.constraint.numa_bind and request.count > 1:
            fits = numa_groups(fits, request.count, ledger.numa[rows])
        found = _enough(fits, count)
        result = found if result is None else result & found
        if mutex:
            alone = fits if alone is None else alone | fits
    if result is not None and alone is not None:
        result &= _enough(alone, sum(pod.together.values()))
    return np.ones(ledger.grade[rows].shape, np.bool_) if result is None else result


def _percent_need(ledger: Ledger, percent: int) -> NDArray[np.int32]:
    """Return what a percentage of each card's memory is, MiB (rounded down)."""

    def make() -> NDArray[np.int32]:
        need = ledger.mem_total[: ledger.size] * percent // 100
        return np.minimum(need, INT32_MAX).astype(np.int32)

    return ledger.remembered(("percent", percent), make)


def _enough(fits: Mask, count: int) -> Mask:
    words = np.ascontiguousarray(fits).view(np.uint64)
    if words.shape[1] > 1:
        several: Mask = count_true(fits) >= count
        return several
    if count == 1:  # one word a row: any bit will do
        some: Mask = words[:, 0] != 0
        return some
    enough: Mask = np.bitwise_count(words)[:, 0] >= count
    return enough


def place(ledger: Ledger, pod: PodRequest, rows: Rows, room: Amount = UNBOUNDED) -> Placement:
    """Place a pod on each of some rows, container by container.

    A plain init container is placed beside the sidecars started so far and gives
    its share back; sidecars and apps keep theirs.

    Args:
        ledger: The cards.
        pod: What it asks for.
        rows: Which nodes.
        room: What its namespace's quota leaves it.
    """
    policy = policy_of(pod.card_policy)
    usable = ledger.usable[rows]
    accepted = allowed(ledger, pod, rows)
    if accepted is not None:
        usable = usable & accepted
    mem_total, slots_total = ledger.mem_total[rows], ledger.slots_total[rows]
    core_total = ledger.core_total[rows]
    running = left_of(ledger, rows).copy()
    low = None if room.unbounded else running.copy()  # least left at one time
    alive: Mask = np.ones(len(rows), np.bool_)
    links = ledger.links(rows) if policy.linked else None
    numa = ledger.numa[rows]
    nothing: Numbers = np.zeros((len(rows), 0), np.int64)
    picks: list[Numbers] = []
    for request, kind in zip(pod.containers, pod.kinds, strict=True):
        if not request.count:
            picks.append(nothing)
            continue
        if request.count > ledger.width:
            return Placement(np.zeros(len(rows), np.bool_), tuple(picks))
        left = running.copy() if kind is Kind.INIT else running
        need = memory_need(request, mem_total)
        fits = card_fits(request, left, usable, need, slots_total, mutex=policy.mutex)
        full = fullness(
            pod.weights,
            slots_total - left.slots + 1,
            slots_total,
            core_total - left.core + request.core_pct,
            core_total,
            mem_total - left.mem + need,
            mem_total,
        )
        chosen, enough = choose(
            policy, pod.constraint.numa_bind, fits, request.count, full, numa, links
        )
        alive &= enough
        if not alive.any():
            return Placement(alive, tuple(picks))
        left.take(chosen, need, request.core_pct)
        picks.append(chosen)
        if low is not None:
            np.minimum(low.mem, left.mem, out=low.mem)
            np.minimum(low.core, left.core, out=low.core)
    if low is None:
        return Placement(alive, tuple(picks))
    mem = (ledger.mem_free[rows] - low.mem).sum(axis=1)
    core = (ledger.core_free[rows] - low.core).sum(axis=1)
    within: Mask = np.ones(len(rows), np.bool_)
    if room.mem_mib is not None:
        within &= (mem <= room.mem_mib) | (mem == 0)
    if room.core_pct is not None:
        within &= (core <= room.core_pct) | (core == 0)
    return Placement(alive, tuple(picks), within)


@lru_cache(maxsize=64)
def policy_of(text: str) -> CardPolicy:
    """Return a pod's card policy, taken apart."""
    return card_policy(text)


def felt(ledger: Ledger, pod: PodRequest, room: Amount) -> Amount:
    """Return a quota's room as a pod feels it: none where all its containers together, each
    on the largest cards, stay within."""
    if room.unbounded:
        return UNBOUNDED
    largest = int(ledger.remembered("largest", lambda: _largest(ledger))[0])
    mem = core = 0
    for request in pod.containers:
        need = request.mem_mib
        if need is None:
            need = largest * (request.mem_pct or 0) // 100
        mem += request.count * need
        core += request.count * request.core_pct
    if room.mem_mib is not None and mem > room.mem_mib:
        return room
    if room.core_pct is not None and core > room.core_pct:
        return room
    return UNBOUNDED


def _largest(ledger: Ledger) -> Numbers:
    found: Numbers = ledger.mem_total[: ledger.size].max(initial=0).reshape(1)
    return found


def shares_of(
    ledger: Ledger, pod: PodRequest, placement: Placement, at: int, row: int
) -> PodShares:
    """Return one row's placement as what each container was promised.

    Args:
        at: Position of the row in the placement.
        row: Its row in the ledger.
    """
    cards = ledger.cards_of(ledger.name_of(row))
    return tuple(
        tuple(
            Share(
                uuid=cards[column].uuid,
                vendor=cards[column].vendor,
                mem_mib=int(memory_need(request, ledger.mem_total[row, column : column + 1])[0]),
                core_pct=request.core_pct,
            )
            for column in columns[at].tolist()
        )
        for request, columns in zip(pod.containers, placement.picks, strict=True)
    )


def bonus(ledger: Ledger, pod: PodRequest) -> Floats:
    """Return what the pod adds to a node's fill grades, for each kind of node.

    A node's score on HAMi's scale is ten times the sum of its fill grades (slots, memory,
    cores) *with* the pod on it (HAMi #1699, #2870): ``ledger.grade`` and this.
    """
    slots, mem, mem_pct, cores = _asked(pod)
    few = ledger.few_kinds()
    # One after the other, so that nodes that are alike get exactly the same. A percentage is
    # of one card; over unequal cards of a node the mean is meant.
    if few:
        return np.array(
            [
                slots * by_slots + mem * by_mem + cores * by_cores + mem_pct / (100 * (cards or 1))
                for by_slots, by_mem, by_cores, cards in few
            ]
        )
    inverse, cards = ledger.kinds()
    added: Floats = slots * inverse[0] + mem * inverse[1] + cores * inverse[2]
    added += mem_pct / (100 * np.maximum(cards, 1))
    return added


def _asked(pod: PodRequest) -> tuple[int, int, int, int]:
    """Return slots, MiB, percent of memory and of cores of all long-lived containers,
    or of the largest plain init container where nothing else asks."""
    lasting = [
        r for r, k in zip(pod.containers, pod.kinds, strict=True) if r.count and k is not Kind.INIT
    ]
    slots = mem = mem_pct = cores = 0
    for request in lasting or [max(pod.containers, key=lambda r: r.count)]:
        count = request.count
        slots += count
        mem += count * (request.mem_mib or 0)
        mem_pct += count * (request.mem_pct or 0)
        cores += count * request.core_pct
    return slots, mem, mem_pct, cores
