"""What is asked for: which cards the nodes shall carry.

``--cards`` is one list of cards for every node, or one a node with semicolons between.
A list names emulated cards, or the machine's own, never both:

=============================  =========================================================
``a100-80gb:2,t4:1``           emulated cards: profile and how many
``nvidia``                     the machine's own, all that no other node names; nodes
                               that say this share them out evenly
``nvidia:2``                   two of them, the lowest indices that no node names
``nvidia:0,1``                 those with these indices, as ``nvidia-smi -L`` counts them
``nvidia:GPU-4cf8…,MIG-1a2b…`` by uuid, or its unique beginning; MIG devices too
``nvidia:0:1``                 MIG device 1 of card 0
``nvidia:device=2``            one by its index, whatever the other lists say
=============================  =========================================================

A single number is how many, unless some list names cards (several numbers, a zero, a
uuid, ``device=``): then all are indices, so that ``nvidia:0,1;nvidia:2`` is cards 0 and
1, and card 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.card import profiles
from testbed.errors import InputError

#: Of one node (``VGPU_MAX_DEVICES`` of region.h).
MAX_CARDS = 16


#: What stands for the machine's own cards, where profiles stand for emulated ones.
REAL = "nvidia"
_NAMED = "device="
_REAL_HINT = "write nvidia, nvidia:2 (how many), nvidia:device=0,1 or nvidia:GPU-…,MIG-…"
#: An index, a card's index and its MIG device's, or the beginning of a uuid.
_DEVICE = re.compile(r"(0|[1-9][0-9]{0,2})(:[0-9]{1,2})?|(GPU|MIG)-[0-9A-Za-z/-]{2,}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSpec:
    """Cards that a node shall carry.

    Attributes:
        profile: An emulated card's profile, or ``nvidia`` for the machine's own.
        count: How many; 0 with ``nvidia``: all that no other node names.
        devices: Which of the machine's own, as they were written; ``count`` is their
            number then. Empty for emulated cards.
    """

    profile: str = "a100-80gb"
    count: int = 1
    devices: tuple[str, ...] = ()

    @property
    def real(self) -> bool:
        """Whether this is about the machine's own cards."""
        return self.profile == REAL

    def text(self) -> str:
        """Return it as ``parse_nodes`` reads it."""
        if self.devices:
            return f"{self.profile}:{_NAMED}{','.join(self.devices)}"
        return self.profile if self.real and not self.count else f"{self.profile}:{self.count}"


def parse_cards(text: str) -> tuple[CardSpec, ...]:
    """Return the emulated cards of ``PROFILE[:COUNT][,…]``.

    Raises:
        InputError: an empty or mistyped entry, an unknown profile, too many cards,
            lists for several nodes, or the machine's own cards, which only a cluster's
            nodes can be given.
    """
    if ";" in text:
        raise InputError(
            f"{text!r} gives cards for {text.count(';') + 1} nodes",
            why="here is one list, with commas between",
            hint=f"write {text.replace(';', ',')}, or use a cluster: testbed up --cards {text!r}",
        )
    if REAL in _words(text):
        raise InputError(
            f"{text!r} asks for the machine's own cards",
            why="here are emulated ones only",
            hint="run your program as it is for the real card, or name a profile"
            " (`testbed card ls`)",
        )
    return _emulated(text)


def parse_nodes(
    text: str, nodes: int | None = None
) -> tuple[int, tuple[tuple[CardSpec, ...], ...]]:
    """Return how many nodes there shall be, and the cards of each.

    Args:
        text: ``CARDS`` for every node alike, or ``CARDS;CARDS;…``, one list a node; the
            module says what a list may be.
        nodes: How many nodes; without it as many as there are lists.

    Raises:
        InputError: a list that names no cards, both kinds of cards on one node, too many
            on one, or lists for another number of nodes.
    """
    parts = text.split(";")
    real = [_real_words(part) if REAL in _words(part) else None for part in parts]
    named = any(words is not None and _names_cards(words) for words in real)
    lists = tuple(
        _emulated(part) if words is None else (_own(part, words, named=named),)
        for part, words in zip(parts, real, strict=True)
    )
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
    texts = [",".join(card.text() for card in cards) for cards in nodes]
    return texts[0] if len(set(texts)) == 1 else ";".join(texts)


def _emulated(text: str) -> tuple[CardSpec, ...]:
    found: list[CardSpec] = []
    for entry in text.split(","):
        profile, colon, count = (part.strip() for part in entry.partition(":"))
        if not profile or (colon and not (count.isascii() and count.isdecimal() and int(count))):
            raise InputError(
                f"{text!r} does not name cards",
                why=f"{count!r} is no number of them" if profile else "a name is missing",
                hint="write a100-80gb:2,t4:1",
            )
        profiles.load(profile)
        found.append(CardSpec(profile=profile, count=int(count or 1)))
    _check_number(text, sum(card.count for card in found))
    return tuple(found)


def _words(text: str) -> set[str]:
    return {entry.partition(":")[0].strip() for entry in text.split(",")}


def _real_words(text: str) -> list[str]:
    """Return what a list of the machine's cards names, without its ``nvidia:``.

    Raises:
        InputError: it names emulated cards too.
    """
    found = []
    for number, entry in enumerate(text.split(",")):
        word, colon, rest = (part.strip() for part in entry.partition(":"))
        if word == REAL:
            found.append(rest if colon else "all")
        elif number and _DEVICE.fullmatch(entry.strip()):
            found.append(entry.strip())
        elif word in profiles.PROFILES:
            raise InputError(
                f"{text!r} mixes emulated cards and the machine's own on one node",
                why="a node has one driver",
                hint="give them to different clusters (--name)",
            )
        else:
            raise InputError(f"{text!r} does not name cards", hint=_REAL_HINT)
    return found


def _names_cards(words: Sequence[str]) -> bool:
    return words != ["all"] and (
        len(words) > 1 or not words[0].isdecimal() or words[0].lstrip("0") == ""
    )


def _own(text: str, words: Sequence[str], *, named: bool) -> CardSpec:
    if list(words) == ["all"]:
        return CardSpec(profile=REAL, count=0)
    if not named and words[0].isascii() and words[0].isdecimal():
        _check_number(text, int(words[0]))
        return CardSpec(profile=REAL, count=int(words[0]))
    devices = tuple(word.removeprefix(_NAMED).strip() for word in words)
    for device in devices:
        if not _DEVICE.fullmatch(device):
            raise InputError(
                f"{text!r} does not name cards",
                why=f"{device!r} is no index and no uuid",
                hint=_REAL_HINT,
            )
    if len(set(devices)) < len(devices):
        raise InputError(f"{text!r} names a card twice", hint="name each once")
    _check_number(text, len(devices))
    return CardSpec(profile=REAL, count=len(devices), devices=devices)


def _check_number(text: str, total: int) -> None:
    if total > MAX_CARDS:
        raise InputError(
            f"{text!r} asks for {total} cards on a node",
            why=f"there can be {MAX_CARDS} at most",
            hint="use fewer cards, or several nodes",
        )
