"""What a waiting pod lacks, in clauses."""

from __future__ import annotations

from collections.abc import Sequence

from testbed import units
from testbed.errors import InputError
from testbed.lab.explain.model import Ask, NodeRoom, Raw
from testbed.lab.explain.room import cards_of, need_mib
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import vendors
from testbed.stack.model import Request
from testbed.stack.placement.quota import Amount
from testbed.stack.placement.request import PodRequest


def quota_short(left: Amount, request: PodRequest, pod: Raw) -> str:
    """Return in one clause that cards are there and the quota is what is short."""
    parts = []
    if left.mem_mib is not None:
        parts.append(f"{max(0, left.mem_mib):,} MiB")
    if left.core_pct is not None:
        parts.append(f"{max(0, left.core_pct)} % of compute")
    namespace = pod["metadata"].get("namespace", "default")
    cards = sum(one.count for one in request.containers)
    several = f", and it counts {cards} cards" if cards > 1 else ""
    return (
        f"cards are free for it, and the quota of namespace {namespace} has "
        f"{' and '.join(parts)} left{several}"
    )


def evicting(memory: Raw, pods: Sequence[Raw]) -> tuple[str, ...]:
    """Return whose end is on its way, to make room for the pod."""
    evicts = memory.get("evicts")
    if not evicts:
        return ()
    by_uid = {
        pod["metadata"]["uid"]: f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
    }
    victims = ", ".join(by_uid.get(uid, uid) for uid in evicts["victims"]) or "pods that have ended"
    return (f"room is made for it on {evicts['node']}: {victims}, of a lower priority",)


def in_short(found: Sequence[NodeRoom], one: Request, asked: tuple[Ask, ...]) -> str:
    """Return in one clause what the nearest open node lacks."""
    open_ = [node for node in found if not node.excluded]
    if not open_:
        return "no node with cards is open to it"
    near = open_[0]
    if not near.cards:
        return f"no node that is open to it has a card of {one.vendor}"
    if len(near.cards) < one.count:
        have = f"{len(near.cards)} card{'s' if len(near.cards) != 1 else ''}"
        return (
            f"it asks for {one.count} cards at once, and the nearest node, {near.node}, has {have}"
        )
    taking = [room for room in near.cards if room.lack.nothing]
    if len(taking) >= one.count:
        containers = sum(1 for ask in asked if ask.cards)
        return f"its {containers} containers do not fit together on {near.node}"
    room = near.cards[len(taking)]  # the nearest of those that lack something
    parts = list(room.lack.blocked)
    if room.lack.mem_mib:
        need = need_mib(one, room.mem_mib)
        parts.append(f"{max(0, room.mem_free_mib):,} MiB free of the {need:,} MiB asked")
    if room.lack.whole:
        parts.append("shared, and it asks for a card alone")
    elif room.lack.core_pct:
        parts.append(f"{max(0, room.core_free_pct)} % of compute free of {one.core_pct} % asked")
    if room.lack.slots:
        parts.append(f"all its {room.slots} slots taken")
    several = f"{len(taking)} of {one.count} cards found; " if one.count > 1 else ""
    return (
        f"{several}the nearest card, {room.index} of {near.node}, is {' and '.join(parts)}"
        if (room.lack.blocked or room.lack.whole)
        else f"{several}the nearest card, {room.index} of {near.node}, has {' and '.join(parts)}"
    )


def larger_than_any(books: Raw, one: Request) -> tuple[str, ...]:
    largest = _largest(books, one.vendor)
    if one.mem_mib is not None and 0 < largest < one.mem_mib:
        return (f"no card here is that large: programs can have {largest:,} MiB of the largest",)
    return ()


def hardest(request: PodRequest, books: Raw) -> Request:
    """Return the request that is the hardest to place: most cards, memory, cores."""
    largest = _largest(books, request.vendor)
    return max(
        (r for r in request.containers if r.count),
        key=lambda r: (r.count, need_mib(r, largest), r.core_pct),
    )


def _largest(books: Raw, vendor: str) -> int:
    """Return the MiB of the largest card of a vendor; 0 where it has none."""
    nodes = books["nodes"].values()
    return max(
        (card["mem_mib"]["total"] for node in nodes for card in cards_of(node, vendor)), default=0
    )


def away(config: DeviceConfig, nodes: dict[str, Raw], word: str) -> list[str]:
    """Return the nodes whose kubelet offers no card of a vendor: its plugin does not run."""
    count = next(vendor.count for vendor in vendors(config) if vendor.word == word)
    found = []
    for name, node in nodes.items():
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        try:
            offers = units.quantity(allocatable.get(count, 0)) > 0
        except InputError:
            offers = False
        if not offers:
            found.append(name)
    return found
