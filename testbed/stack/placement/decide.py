"""The decision: the best node of those offered, and the shares on it.

The offer is the scheduler's ``NodeNames``, still as JSON bytes: the ledger's best
candidates are looked up in it as quoted names, and only when those fail are all
names decoded (5,000 names cost more than the whole decision).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.stack.model import PodShares
from testbed.stack.placement.arrays import Mask
from testbed.stack.placement.fit import felt, place, shares_of
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.offer import Offer as Offer
from testbed.stack.placement.outlook import Outlook, outlook
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest
from testbed.stack.placement.single import place_row, single

#: Candidates that are placed one by one, and looked up in the raw bytes, before many
#: are placed at once.
_TRIES = 8
#: Rows placed at once, growing, since the first candidates of binpack are the nearly
#: full nodes.
_CHUNK, _GROWTH = 32, 4
#: Names that are not found in the raw bytes until all are decoded.
_MISSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a pod goes."""

    node: str
    shares: PodShares
    score: float


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
    room = felt(ledger, pod, room)
    view = outlook(ledger, pod)
    key = view.key
    row = int(key.argmax())
    if key[row] == -np.inf:
        return None
    tried = 0
    if single(pod):
        rest = key
        while tried < _TRIES:
            tried += 1
            if offer.holds(ledger.quoted(row)):
                shares = place_row(ledger, pod, row, room)
                if shares is not None:
                    return _choice(ledger, row, shares, view)
            if rest is key:
                rest = key.copy()
            rest[row] = -np.inf
            row = int(rest.argmax())
            if rest[row] == -np.inf:
                return None
    rows = np.flatnonzero(key > -np.inf)
    rows = rows[np.argsort(-key[rows], kind="stable")][tried:]
    offered: Mask | None = None
    misses, step = 0, _CHUNK
    while len(rows):
        some, rows, step = rows[:step], rows[step:], step * _GROWTH
        if offered is not None:
            some = some[offered[some]]
            if not len(some):
                continue
        placement = place(ledger, pod, some, room)
        for at in np.flatnonzero(placement.good).tolist():
            row = int(some[at])
            if offered is None and misses == _MISSES:
                offered = offer.offered(ledger)
            if offer.holds(ledger.quoted(row)) if offered is None else offered[row]:
                return _choice(ledger, row, shares_of(ledger, pod, placement, at, row), view)
            misses += 1
    return None


def _choice(ledger: Ledger, row: int, shares: PodShares, view: Outlook) -> Choice:
    return Choice(node=ledger.name_of(row), shares=shares, score=view.score(row))
