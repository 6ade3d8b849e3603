"""The decision: the best node of those offered, and the shares on it.

The offer is the scheduler's ``NodeNames``, still as JSON bytes: the ledger's best
candidates are looked up in it as quoted names, and only when those fail are all
names decoded (5,000 names cost more than the whole decision).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from testbed.errors import CodecError
from testbed.stack.model import PodShares
from testbed.stack.placement.fit import (
    decided_by_fullness,
    may_fit,
    place,
    place_one,
    score,
    shares_of,
)
from testbed.stack.placement.ledger import Floats, Ledger, Mask, Rows
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest

#: Candidates that are looked up in the raw bytes before all names are decoded.
_TRIES = 8
#: Several containers: rows placed at once, growing, since the first candidates of
#: binpack are the nearly full nodes.
_CHUNK, _GROWTH = 32, 4

_decode_names = msgspec.json.Decoder(list[str]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a pod goes."""

    node: str
    shares: PodShares
    score: float


class Offer:
    """The node names that the scheduler offers, decoded when needed."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._names: list[str] | None = None

    @classmethod
    def of(cls, names: list[str]) -> Offer:
        return cls(msgspec.json.encode(names))

    def holds(self, quoted: bytes) -> bool:
        return quoted in self._raw

    @property
    def names(self) -> list[str]:
        """Return all names.

        Raises:
            CodecError: the value is not a list of strings.
        """
        if self._names is None:
            try:
                self._names = _decode_names(self._raw)
            except msgspec.DecodeError as error:
                raise CodecError("NodeNames cannot be read", why=str(error)) from error
        return self._names

    def rows(self, ledger: Ledger) -> Mask:
        """Return, for every row, whether its node is offered."""
        offered: Mask = np.zeros(ledger.size, np.bool_)
        rows = ledger.rows_of(self.names)
        offered[rows[rows >= 0]] = True
        return offered


def decide(
    ledger: Ledger, pod: PodRequest, offer: Offer, room: Amount = UNBOUNDED
) -> Choice | None:
    """Return the best fitting node of the offer; None if none fits.

    Best is the highest score for binpack and the lowest for spread; of equals the
    lowest row.

    Args:
        ledger: The cards.
        pod: What it asks for.
        offer: The nodes that it may go to.
        room: What its namespace's quota leaves it.
    """
    if ledger.size == 0:
        return None
    grades = score(ledger, pod)
    sign = 1.0 if pod.node_policy == "binpack" else -1.0
    fits = may_fit(ledger, pod)
    if not fits.any():
        return None
    key = np.where(fits, grades * sign, -np.inf)
    several = sum(1 for request in pod.containers if request.count) > 1
    plain = not several and _within(pod, room) and decided_by_fullness(pod)
    if not several:
        for row in _best(key, _TRIES):
            if offer.holds(ledger.quoted(row)):
                if plain:
                    shares = place_one(ledger, pod, row)
                    if shares is not None:
                        node = ledger.name_of(row)
                        return Choice(node=node, shares=shares, score=float(grades[row]))
                    continue
                choice = _try(ledger, pod, np.array([row], np.int64), grades, room)
                if choice is not None:
                    return choice
    rows = np.flatnonzero(fits & offer.rows(ledger))
    rows = rows[np.argsort(-key[rows], kind="stable")]
    start, step = 0, _CHUNK if several else 1
    while start < len(rows):
        choice = _try(ledger, pod, rows[start : start + step], grades, room)
        if choice is not None:
            return choice
        start, step = start + step, step * _GROWTH
    return None


def _best(key: Floats, tries: int) -> Iterator[int]:
    rest = key.copy()
    for _ in range(min(tries, len(rest))):
        row = int(rest.argmax())
        if rest[row] == -np.inf:
            return
        yield row
        rest[row] = -np.inf


def _try(
    ledger: Ledger, pod: PodRequest, rows: Rows, grades: Floats, room: Amount
) -> Choice | None:
    placement = place(ledger, pod, rows, room)
    good = placement.good
    at = int(good.argmax())
    if not good[at]:
        return None
    row = int(rows[at])
    return Choice(
        node=ledger.name_of(row),
        shares=shares_of(ledger, pod, placement, at, row),
        score=float(grades[row]),
    )


def _within(pod: PodRequest, room: Amount) -> bool:
    """Tell whether a pod with one asking container is within a quota wherever it goes."""
    if room.unbounded:
        return True
    (request,) = (r for r in pod.containers if r.count)
    if room.mem_mib is not None and (
        request.mem_mib is None or request.count * request.mem_mib > room.mem_mib
    ):
        return False
    return room.core_pct is None or request.count * request.core_pct <= room.core_pct
