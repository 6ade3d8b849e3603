"""What would make a pod fit: each change is tried on a copy of the extender's books.

Nothing is advised that was not placed by the very functions the extender uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from testbed.errors import CodecError, InputError
from testbed.lab.explain.model import NodeRoom, Raw, Remedy
from testbed.lab.explain.room import ledger_of, need_mib, promise_of, taken
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares
from testbed.stack.extender.pods import view_of
from testbed.stack.model import Constraint, Request
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.effective import Charge, fold
from testbed.stack.placement.fit import EXCLUSIVE_PCT
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest

#: Pods whose end is tried, and how many of those that help are named.
_TRIED, _NAMED = 500, 3


def remedies(
    books: Raw,
    request: PodRequest,
    rooms: Sequence[NodeRoom],
    pods: Sequence[Raw],
    offered: Sequence[str],
    left: Amount = UNBOUNDED,
) -> tuple[Remedy, ...]:
    """Return changes after which the pod would fit, those in the pod's own hands first.

    Args:
        books: The extender's ledger.
        request: The pod's.
        rooms: Every node, nearest first.
        pods: All pods, for who holds what.
        offered: The nodes that the scheduler offers.
        left: What the namespace's quota leaves.
    """
    ledger, offer = ledger_of(books), Offer.of(list(offered))

    def where(changed: PodRequest) -> str:
        choice = decide(ledger, changed, offer, left)
        return choice.node if choice else ""

    if decide(ledger, request, offer) is not None:  # the quota alone keeps it away
        return (*_within(request, left, where), *_more_quota(request, ledger, offer))
    found = [
        *_smaller(request, rooms, where),
        *_other_cards(request, where),
        *_uncordoned(books, request, offer, left),
        *_ended(books, ledger, request, offer, pods, left),
        *_unoffered(ledger, request, rooms, offered, left),
    ]
    return tuple(found)


# --- the namespace has a quota --------------------------------------------------


def _within(
    request: PodRequest, left: Amount, where: Callable[[PodRequest], str]
) -> Iterator[Remedy]:
    """What the pod could ask for within what is left, where one container alone asks."""
    asking = [r for r in request.containers if r.count]
    if len(asking) != 1:
        return
    (one,) = asking
    mem = None if left.mem_mib is None else left.mem_mib // one.count
    cores = None if left.core_pct is None else left.core_pct // one.count
    less_mem = mem is not None and mem > 0 and (one.mem_mib is None or mem < one.mem_mib)
    less_cores = cores is not None and 0 < cores < one.core_pct
    for by_mem, by_cores in ((less_mem, False), (False, less_cores), (less_mem, less_cores)):
        if not (by_mem or by_cores):
            continue
        fields = {
            **({"mem_mib": mem, "mem_pct": None} if by_mem else {}),
            **({"core_pct": cores} if by_cores else {}),
        }

        def change(each: Request, fields: dict[str, int | None] = fields) -> Request:
            return dataclasses.replace(each, **fields)  # type: ignore[arg-type]

        if node := where(_each(request, change)):
            parts = ([f"{mem:,} MiB"] if by_mem else []) + (
                [f"{cores} % of compute"] if by_cores else []
            )
            yield Remedy(what=f"it asked for at most {' and '.join(parts)}", node=node)
            return


def _more_quota(request: PodRequest, ledger: Ledger, offer: Offer) -> Iterator[Remedy]:
    choice = decide(ledger, request, offer)
    if choice is not None:
        what = "its namespace had a larger quota, or less of it in use"
        yield Remedy(what=what, node=choice.node)


# --- the pod asks for less ------------------------------------------------------


def _smaller(
    request: PodRequest, rooms: Sequence[NodeRoom], where: Callable[[PodRequest], str]
) -> Iterator[Remedy]:
    asking = [r for r in request.containers if r.count]
    if len(set(asking)) != 1:
        return  # several different containers: which should ask for less is not ours to say
    one = asking[0]

    def changed(**fields: int | None) -> PodRequest:
        return _each(request, lambda r: dataclasses.replace(r, **fields))  # type: ignore[arg-type]

    mem, cores = _most_memory(one, rooms), _most_cores(one, rooms)
    if mem and (node := where(changed(mem_mib=mem, mem_pct=None))):
        yield Remedy(what=f"it asked for at most {mem:,} MiB", node=node)
    elif cores and (node := where(changed(core_pct=cores))):
        yield Remedy(what=f"it asked for at most {cores} % of compute", node=node)
    else:
        both = _both(one, rooms)
        if both and (node := where(changed(mem_mib=both[0], mem_pct=None, core_pct=both[1]))):
            yield Remedy(
                what=f"it asked for at most {both[0]:,} MiB and {both[1]} % of compute", node=node
            )
    for count in range(one.count - 1, 0, -1):
        if node := where(changed(count=count)):
            cards = "one card" if count == 1 else f"{count} cards"
            yield Remedy(what=f"it asked for {cards}", node=node)
            break


def _each(request: PodRequest, change: Callable[[Request], Request]) -> PodRequest:
    containers = tuple(change(r) if r.count else r for r in request.containers)
    return dataclasses.replace(request, containers=containers)


def _most_memory(one: Request, rooms: Sequence[NodeRoom]) -> int:
    """Return the most MiB for which some node has enough cards, less than is asked."""
    most = 0
    for node in rooms:
        free = [
            room.mem_free_mib
            for room in node.cards
            if not (room.lack.blocked or room.lack.core_pct or room.lack.slots or room.lack.whole)
        ]
        most = max(most, _kth(free, one.count))
    asked = one.mem_mib
    if asked is None:
        asked = max((need_mib(one, r.mem_mib) for n in rooms for r in n.cards), default=0)
    return most if 0 < most < asked else 0


def _most_cores(one: Request, rooms: Sequence[NodeRoom]) -> int:
    most = 0
    for node in rooms:
        free = [
            room.core_free_pct
            for room in node.cards
            if not (room.lack.blocked or room.lack.mem_mib or room.lack.slots)
        ]
        most = max(most, _kth(free, one.count))
    # 100 % is a card alone; a shared one can give all that is left, and 99 at most.
    most = min(most, one.core_pct - 1, EXCLUSIVE_PCT - 1)
    return most if most > 0 else 0


def _both(one: Request, rooms: Sequence[NodeRoom]) -> tuple[int, int] | None:
    """Return memory and cores that the nearest node with enough usable cards can give."""
    for node in rooms:
        usable = [room for room in node.cards if not (room.lack.blocked or room.lack.slots)]
        near = usable[: one.count]
        if len(near) == one.count:
            mem = min(room.mem_free_mib for room in near)
            cores = min(min(room.core_free_pct for room in near), max(one.core_pct, 1))
            cores = min(cores, EXCLUSIVE_PCT - 1)
            if mem > 0 and cores > 0:
                return min(mem, one.mem_mib or mem), min(cores, one.core_pct)
    return None


def _kth(values: Sequence[int], count: int) -> int:
    ordered = sorted(values, reverse=True)
    return ordered[count - 1] if len(ordered) >= count else 0


# --- the pod is less particular -------------------------------------------------


def _other_cards(request: PodRequest, where: Callable[[PodRequest], str]) -> Iterator[Remedy]:
    if request.constraint == Constraint():
        return
    node = where(dataclasses.replace(request, constraint=Constraint()))
    if node:
        wishes = {
            names.USE_TYPE: request.constraint.use_types,
            names.NOUSE_TYPE: request.constraint.nouse_types,
            names.USE_UUID: request.constraint.use_uuids,
            names.NOUSE_UUID: request.constraint.nouse_uuids,
        }
        keys = " and ".join(key for key, words in wishes.items() if words)
        yield Remedy(what=f"it did without its annotation {keys}", node=node)


def _unoffered(
    ledger: Ledger,
    request: PodRequest,
    rooms: Sequence[NodeRoom],
    offered: Sequence[str],
    left: Amount,
) -> Iterator[Remedy]:
    closed = {room.node: room.excluded for room in rooms if room.excluded}
    choice = decide(ledger, request, Offer.of([*offered, *closed]), left)
    if choice is not None and choice.node in closed:
        yield Remedy(
            what=f"node {choice.node} were open to it ({closed[choice.node]})", node=choice.node
        )


# --- the cards change ------------------------------------------------------------


def _uncordoned(books: Raw, request: PodRequest, offer: Offer, left: Amount) -> Iterator[Remedy]:
    for name, node in books["nodes"].items():
        marked = [card for card in node["cards"] if card["cordoned"]]
        if not marked:
            continue
        opened = {"cards": [{**card, "cordoned": False} for card in node["cards"]]}
        opened_books = ledger_of({"nodes": {**books["nodes"], name: opened}})
        choice = decide(opened_books, request, offer, left)
        if choice is not None and choice.node == name:
            cards = ", ".join(str(card["index"]) for card in marked)
            yield Remedy(what=f"card {cards} of {name} were not cordoned", node=name)


def _ended(
    books: Raw,
    ledger: Ledger,
    request: PodRequest,
    offer: Offer,
    pods: Sequence[Raw],
    left: Amount,
) -> Iterator[Remedy]:
    """Pods of which the end of one alone would do, the smallest first."""
    held = {entry["uid"]: entry for entry in books["pods"]}
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    candidates = []
    for uid, entry in list(held.items())[:_TRIED]:
        pod = by_uid.get(uid)
        if pod is None or entry["node"] not in books["nodes"]:
            continue
        charges = _charges(pod, entry["devices"])
        before = taken(books["nodes"][entry["node"]])
        after = {
            card: Charge(
                slots=charge.slots - charges.get(card, Charge()).slots,
                mem_mib=charge.mem_mib - charges.get(card, Charge()).mem_mib,
                core_pct=charge.core_pct - charges.get(card, Charge()).core_pct,
            )
            for card, charge in before.items()
        }
        ledger.promise(promise_of(entry["node"]), entry["node"], after)
        choice = decide(ledger, request, offer, left)
        ledger.promise(promise_of(entry["node"]), entry["node"], before)
        if choice is not None:
            mem = sum(charge.mem_mib for charge in charges.values())
            cores = sum(charge.core_pct for charge in charges.values())
            candidates.append((mem, cores, entry, choice.node))
    candidates.sort(key=lambda item: (item[0], item[1], item[2]["namespace"], item[2]["name"]))
    for mem, cores, entry, node in candidates[:_NAMED]:
        share = f" and {cores} %" if cores else ""
        what = f"pod {entry['namespace']}/{entry['name']} ended (it holds {mem:,} MiB{share})"
        yield Remedy(what=what, node=node)


def _charges(pod: Raw, devices: str) -> Mapping[str, Charge]:
    """Return what a pod holds of each card now, as the extender counts it."""
    try:
        view = view_of(pod)
        shares = decode_pod_shares(devices, len(view.kinds))
    except (InputError, CodecError):
        return {}
    return fold(shares, view.kinds, initialised=view.initialised)
