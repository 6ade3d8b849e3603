"""What is asked for: which cards the nodes shall carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.card import profiles
from testbed.errors import InputError

#: Of one node (``VGPU_MAX_DEVICES`` of region.h).
MAX_CARDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpec:
    """A card that a node shall carry: a profile's name and how many of it."""

    profile: str = "a100-80gb"
    count: int = 1


def parse_cards(text: str) -> tuple[CardSpec, ...]:
    """Return the cards of ``PROFILE[:COUNT][,…]``.

    Raises:
        InputError: an empty or mistyped entry, an unknown profile, too many cards.
    """
    found: list[CardSpec] = []
    for entry in text.split(","):
        profile, colon, count = (part.strip() for part in entry.partition(":"))
        if not profile or (colon and not (count.isascii() and count.isdecimal() and int(count))):
            raise InputError(f"{text!r} does not name cards", hint="write a100-80gb:2,t4:1")
        profiles.load(profile)
        found.append(CardSpec(profile=profile, count=int(count or 1)))
    total = sum(card.count for card in found)
    if total > MAX_CARDS:
        raise InputError(
            f"{text!r} asks for {total} cards on a node",
            why=f"there can be {MAX_CARDS} at most",
            hint="use fewer cards, or several nodes",
        )
    return tuple(found)


def parse_nodes(
    text: str, nodes: int | None = None
) -> tuple[int, tuple[tuple[CardSpec, ...], ...]]:
    """Return how many nodes there shall be, and the cards of each.

    Args:
        text: ``CARDS`` for every node alike, or ``CARDS;CARDS;…``, one list a node.
        nodes: How many nodes; without it as many as there are lists.

    Raises:
        InputError: as ``parse_cards``, or lists for another number of nodes.
    """
    lists = tuple(parse_cards(part) for part in text.split(";"))
    if len(lists) == 1:
        count = 1 if nodes is None else nodes
        return count, lists * count
    if nodes is not None and nodes != len(lists):
        raise InputError(
            f"{text!r} gives cards for {len(lists)} nodes, and --nodes says {nodes}",
            hint="give one list for all nodes, or one for each, with semicolons between",
        )
    return len(lists), lists


def cards_text(nodes: Iterable[Sequence[CardSpec]]) -> str:
    """Return nodes' cards as ``parse_nodes`` reads them; one list where all are alike."""
    texts = [",".join(f"{card.profile}:{card.count}" for card in cards) for cards in nodes]
    return texts[0] if len(set(texts)) == 1 else ";".join(texts)
