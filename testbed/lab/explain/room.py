"""The extender's books as nodes with cards, and what a container lacks on each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from testbed.lab.explain.model import Lack, NodeRoom, Raw, Room
from testbed.stack.model import MODE_HAMI_CORE, VENDOR_NVIDIA, Card, Constraint, Request
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.fit import EXCLUSIVE_PCT
from testbed.stack.placement.ledger import Ledger

#: A card that a node does not have is further away than any lack.
_MISSING = 10.0


def ledger_of(books: Raw) -> Ledger:
    """Return a ledger like the extender's: what is taken of a node is one promise."""
    ledger = Ledger()
    for name, node in books["nodes"].items():
        cards = tuple(
            Card(
                uuid=card["uuid"],
                index=card["index"],
                model=card["model"],
                mode=card["mode"],
                healthy=card["healthy"],
                numa=card.get("numa", 0),
                vendor=card.get("vendor", VENDOR_NVIDIA),
                slots=card["slots"]["total"],
                mem_mib=card["mem_mib"]["total"],
                core_pct=card["core_pct"]["total"],
            )
            for card in node["cards"]
        )
        ledger.set_node(name, cards, [c["uuid"] for c in node["cards"] if c["cordoned"]])
        ledger.promise(promise_of(name), name, taken(node))
    return ledger


def promise_of(node: str) -> str:
    """Return by which name a node's taken shares stand in ``ledger_of``."""
    return f"node {node}"


def cards_of(node: Raw, vendor: str) -> list[Raw]:
    """Return a vendor's cards of a node of the books: a pod asks for those of one vendor."""
    return [card for card in node["cards"] if card.get("vendor", VENDOR_NVIDIA) == vendor]


def taken(node: Raw) -> dict[str, Charge]:
    """Return what is taken of each card of a node of the books, by uuid."""
    return {
        card["uuid"]: Charge(
            slots=card["slots"]["used"],
            mem_mib=card["mem_mib"]["used"],
            core_pct=card["core_pct"]["used"],
        )
        for card in node["cards"]
    }


def rooms(
    books: Raw,
    request: Request,
    constraint: Constraint,
    *,
    reasons: Mapping[str, str],
    excluded: Mapping[str, str],
    away: Iterable[str],
) -> tuple[NodeRoom, ...]:
    """Return every node, the nearest to taking the container first, with the cards of the
    vendor that it asks.

    Args:
        books: The extender's ledger.
        request: What the container asks for.
        constraint: The pod's wishes for models and uuids.
        reasons: The extender's words for each node.
        excluded: Why the scheduler does not offer a node, by name.
        away: Nodes whose kubelet offers no card.
    """
    gone = set(away)
    found = []
    for name, node in books["nodes"].items():
        own = cards_of(node, request.vendor)
        cards = [_room(card, request, constraint, away=name in gone) for card in own]
        cards.sort(key=lambda room: (_distance(room), room.index))
        found.append(
            NodeRoom(
                node=name,
                cards=tuple(cards),
                reason=reasons.get(name, ""),
                excluded=excluded.get(name, ""),
            )
        )
    found.sort(key=lambda node: (bool(node.excluded), node_distance(node, request), node.node))
    return tuple(found)


def node_distance(node: NodeRoom, request: Request) -> float:
    """Return how far a node is from taking a container; 0 takes it."""
    near = sorted(map(_distance, node.cards))[: request.count]
    return sum(near) + _MISSING * (request.count - len(near))


def need_mib(request: Request, total_mib: int) -> int:
    """Return what a container takes of a card of that size, MiB."""
    if request.mem_mib is not None:
        return request.mem_mib
    return total_mib * (request.mem_pct or 0) // 100


def _room(card: Raw, request: Request, constraint: Constraint, *, away: bool) -> Room:
    free = {key: card[key]["total"] - card[key]["used"] for key in ("slots", "mem_mib", "core_pct")}
    room = Room(
        uuid=card["uuid"],
        index=card["index"],
        model=card["model"],
        mem_mib=card["mem_mib"]["total"],
        mem_free_mib=free["mem_mib"],
        core_pct=card["core_pct"]["total"],
        core_free_pct=free["core_pct"],
        slots=card["slots"]["total"],
        slots_free=free["slots"],
    )
    cores = max(request.core_pct, 1)  # a container without a share needs a card with some left
    lack = Lack(
        mem_mib=max(0, need_mib(request, room.mem_mib) - room.mem_free_mib),
        too_small=need_mib(request, room.mem_mib) > room.mem_mib,
        core_pct=max(0, cores - room.core_free_pct),
        slots=int(room.slots_free <= 0),
        whole=request.core_pct >= EXCLUSIVE_PCT and room.slots_free < room.slots,
        blocked=tuple(_blocked(card, constraint, away=away)),
    )
    return dataclasses.replace(room, lack=lack)


def _blocked(card: Raw, constraint: Constraint, *, away: bool) -> Iterable[str]:
    model, uuid = card["model"].lower(), card["uuid"]
    if away:
        yield "its device plugin is away"
    elif not card["healthy"]:
        yield "not healthy"
    if card["cordoned"]:
        yield "cordoned"
    if card["mode"] != MODE_HAMI_CORE:
        yield f"in mode {card['mode']}"
    wanted = [word.lower() for word in constraint.use_types]
    unwanted = [word.lower() for word in constraint.nouse_types]
    if (wanted and not any(word in model for word in wanted)) or any(
        word in model for word in unwanted
    ):
        yield "not of a wanted model"
    if (constraint.use_uuids and uuid not in constraint.use_uuids) or (
        uuid in constraint.nouse_uuids
    ):
        yield "not of a wanted uuid"


def _distance(room: Room) -> float:
    lack = room.lack
    return (
        lack.mem_mib / max(1, room.mem_mib)
        + lack.core_pct / max(1, room.core_pct)
        + lack.slots
        + lack.whole
        + lack.too_small
        + 2 * len(lack.blocked)
    )
