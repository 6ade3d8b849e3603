"""The node's register annotation, ``hami.io/node-nvidia-register``.

HAMi v2.10 writes a JSON array in which every zero field is left out, so an
unhealthy card is one *without* ``health``. The older text form (7 or 9 fields a
card, each card ended by ``:``) is read too and can be written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from sys import intern

import msgspec

from testbed.errors import CodecError
from testbed.stack.model import MODE_HAMI_CORE, VENDOR_NVIDIA, Card

_KNOWN = {"id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health"}
_KNOWN |= {"devicevendor"}
# A large cluster has tens of thousands of cards of few kinds: what is equal is kept once.
_NO_MORE: Mapping[str, object] = {}
_SAME: dict[int, int] = {}
_KINDS = 256
_NUMBERS = ("index", "count", "devmem", "devcore", "numa")
#: HAMi's fields are int32; NUMA node -1 is the kernel's word for none.
_LEAST, _MOST = -1, 2**31 - 1
#: More than any machine has. A ledger's rows are as wide as the widest node.
_MOST_CARDS = 256


def encode_register(cards: Iterable[Card]) -> str:
    """Return the JSON form, zero fields left out as HAMi does."""
    return json.dumps([_encode_json(card) for card in cards], separators=(",", ":"))


def encode_register_text(cards: Iterable[Card]) -> str:
    """Return the text form with nine fields a card."""
    return "".join(
        f"{c.uuid},{c.slots},{c.mem_mib},{c.core_pct},{c.model},{c.numa},"
        f"{str(c.healthy).lower()},{c.index},{c.mode}:"
        for c in cards
    )


def decode_register(text: str) -> tuple[Card, ...]:
    """Return the cards of either form.

    Raises:
        CodecError: neither form fits; the text names the entry that does not.
    """
    body = text.strip()
    if not body:
        return ()
    if body.startswith("["):
        cards = _decode_json(body)
    else:
        items = [item for item in body.split(":") if item.strip()]
        cards = tuple(_decode_text(item, position) for position, item in enumerate(items))
    if len(cards) > _MOST_CARDS:
        raise CodecError(
            "register annotation cannot be used",
            why=f"it has {len(cards)} cards, and a node has {_MOST_CARDS} at most",
        )
    return cards


def _encode_json(card: Card) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": card.uuid,
        "index": card.index,
        "count": card.slots,
        "devmem": card.mem_mib,
        "devcore": card.core_pct,
        "type": card.model,
        "numa": card.numa,
        "mode": card.mode,
        "health": card.healthy,
    }
    if card.vendor != VENDOR_NVIDIA:
        fields["devicevendor"] = card.vendor
    fields.update(card.extra)
    return {key: value for key, value in fields.items() if value not in (0, "", False, None)}


def _decode_json(body: str) -> tuple[Card, ...]:
    try:
        entries = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CodecError("register annotation cannot be read", why=str(error)) from error
    if not isinstance(entries, list):
        raise CodecError("register annotation cannot be read", why="it is not a list")
    return tuple(_decode_entry(entry) for entry in entries)


def _decode_entry(entry: object) -> Card:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        raise CodecError("register annotation cannot be read", why=f"card {entry!r} has no id")
    try:
        index, slots, mem_mib, core_pct, numa = numbers = [entry.get(key, 0) for key in _NUMBERS]
        if not {int}.issuperset(map(type, numbers)):
            for key in _NUMBERS:
                _integer(entry, key)
        _bounded(numbers)
        return Card(
            uuid=intern(entry["id"]),
            index=index,
            slots=slots,
            mem_mib=_same(mem_mib),
            core_pct=core_pct,
            model=intern(str(entry.get("type", ""))),
            numa=numa,
            mode=intern(str(entry.get("mode", MODE_HAMI_CORE))),
            healthy=entry.get("health") is True,
            vendor=str(entry.get("devicevendor", VENDOR_NVIDIA)),
            extra=_NO_MORE
            if _KNOWN.issuperset(entry)
            else {k: v for k, v in entry.items() if k not in _KNOWN},
        )
    except (TypeError, ValueError) as error:
        raise CodecError(
            "register annotation cannot be read", why=f"card {entry['id']}: {error}"
        ) from error


def _same(number: int) -> int:
    """Return the one object that all cards with this number share."""
    if len(_SAME) < _KINDS:
        return _SAME.setdefault(number, number)
    return _SAME.get(number, number)


def _bounded(numbers: Sequence[int]) -> None:
    """Refuse numbers that no card has, in the order of ``_NUMBERS``."""
    if min(numbers) >= 0 and max(numbers) <= _MOST:
        return
    for key, number in zip(_NUMBERS, numbers, strict=True):
        least = _LEAST if key == "numa" else 0
        if not least <= number <= _MOST:
            raise ValueError(f"{key} is {number}, not from {least} to {_MOST}")


def _integer(entry: dict[str, object], key: str) -> None:
    """Refuse a field that is no integer."""
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} is {value!r}, not an integer")


def _decode_text(item: str, position: int) -> Card:
    fields = item.split(",")
    if len(fields) not in (7, 8, 9) or not fields[0]:
        raise CodecError(
            "register annotation cannot be read", why=f"card {item!r} has {len(fields)} fields"
        )
    try:
        slots, mem_mib, core_pct, numa = (int(fields[at]) for at in (1, 2, 3, 5))
        index = int(fields[7]) if len(fields) > 7 else position
        _bounded((index, slots, mem_mib, core_pct, numa))
        return Card(
            uuid=fields[0],
            slots=slots,
            mem_mib=mem_mib,
            core_pct=core_pct,
            model=fields[4],
            numa=numa,
            healthy=fields[6].strip().lower() == "true",
            index=index,
            mode=fields[8] if len(fields) > 8 else MODE_HAMI_CORE,
        )
    except ValueError as error:
        raise CodecError(
            "register annotation cannot be read", why=f"card {item!r}: {error}"
        ) from error
