"""Why a pod does not fit, node by node, in HAMi's words.

The scheduler's event groups nodes by identical text, so each node gets few words:
the count of cards for each, such as ``2/8 CardInsufficientMemory, 6/8 CardTypeMismatch``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.stack.model import Request
from testbed.stack.placement.arrays import Mask, Rows, count_true, distinct
from testbed.stack.placement.choose import numa_groups
from testbed.stack.placement.fit import EXCLUSIVE_PCT, memory_need, place, type_mask, uuid_mask
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.offer import Offer
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest
from testbed.stack.policy import card_policy

NO_CARDS = "NodeUnfitPod: the node has registered no cards"

HEALTH = "CardNotHealth"
CORDON = "CardCordoned"
MODE = "ModeNotFit"
TYPE = "CardTypeMismatch"
UUID = "CardUuidMismatch"
SLOTS = "CardTimeSlicingExhausted"
MEMORY = "CardInsufficientMemory"
CORES = "CardInsufficientCore"
NUMA = "NumaNotFit"
QUOTA = "ResourceQuotaNotFit"
EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
EXHAUSTED = "CardComputeUnitsExhausted"
TOO_FEW = "NodeInsufficientDevice"
TOGETHER = "AllocatedCardsInsufficientRequest"

#: Requests whose refusals are kept, each with an answer of some hundred kilobytes.
_KEPT = 8
#: With more changed rows, or more texts, than this everything is looked at anew.
_MANY = 512

#: No pod's end will help against these: preemption need not try such a node.
_UNRESOLVABLE = {HEALTH, CORDON, MODE, TYPE, UUID}


class NodeTexts(Mapping[str, str]):
    """A text for each of some nodes, of which thousands share a handful of texts.

    Args:
        names: The nodes.
        known: Names as they stand in JSON, by row.
        rows: For each node its row there, -1 for one that it lacks.
        texts: The texts.
        which: For each node the position of its text.
        at: Positions of the nodes that are meant; all without it.
    """

    def __init__(
        self,
        names: Sequence[str],
        known: NDArray[np.object_],
        rows: Rows,
        texts: list[str],
        which: Rows,
        at: Rows | None = None,
    ) -> None:
        self._names, self._known, self._rows = names, known, rows
        self._texts, self._which, self._at = texts, which, at
        self._dict: dict[str, str] | None = None
        self._json: bytes | None = None

    def __len__(self) -> int:
        return len(self._which if self._at is None else self._at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __getitem__(self, name: str) -> str:
        return self._made()[name]

    def _made(self) -> dict[str, str]:
        if self._dict is None:
            at = range(len(self._which)) if self._at is None else self._at.tolist()
            which = self._which.tolist()
            self._dict = {self._names[i]: self._texts[which[i]] for i in at}
        return self._dict

    def json(self) -> bytes:
        """Return the map as JSON, the nodes of one text together."""
        if self._json is None:
            self._json = self._written()
        return self._json

    def _written(self) -> bytes:
        parts = []
        which, rows = self._which, self._rows
        if self._at is not None:
            which, rows = which[self._at], rows[self._at]
        for number, text in enumerate(self._texts):
            at = np.flatnonzero(which == number)
            if not len(at):
                continue
            mine = rows[at]
            quoted = self._known[mine[mine >= 0]].tolist()
            for stranger in at[mine < 0].tolist():
                place = stranger if self._at is None else int(self._at[stranger])
                quoted.append(msgspec.json.encode(self._names[place]))
            value = b":" + msgspec.json.encode(text)
            parts.append((value + b",").join(quoted) + value)
        return b"{" + b",".join(parts) + b"}"


@dataclass(slots=True)
class Reasons:
    """Texts by node; ``unresolvable`` holds those that no preemption can mend, ``counts``
    how many nodes have each text."""

    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def explain(
    ledger: Ledger, pod: PodRequest, names: Sequence[str], room: Amount = UNBOUNDED
) -> Reasons:
    """Return a reason for every name.

    A node is explained by the first container that finds no cards on its own; where
    each would, they do not fit together. Thousands of nodes share a handful of texts,
    so each text is made once (``which`` is a node's text). Where most nodes are asked
    about all are looked at, in the order of the ledger: to gather some takes longer.
    """
    offer = names if isinstance(names, Offer) else Offer.of(names)
    found = offer.rows(ledger)
    if 2 * len(found) > ledger.size:
        refusals = _refusals(ledger, pod, room)
        if ledger.are_all(found):
            return refusals.whole(ledger)
        texts, final = refusals.texts, refusals.final
        which = np.where(found >= 0, refusals.which.take(found), 0) if ledger.size else found * 0
    else:
        known = np.flatnonzero(found >= 0)
        texts, final, of_row, _ = _texts(ledger, pod, found[known], room)
        which = np.zeros(len(found), np.int64)
        which[known] = of_row
    return _reasons(offer, ledger, found, texts, final, which)


def _reasons(
    names: Sequence[str],
    ledger: Ledger,
    rows: Rows,
    texts: list[str],
    final: list[bool],
    which: Rows,
) -> Reasons:
    known = ledger.all_quoted()
    lost = np.flatnonzero(np.array(final)[which])
    return Reasons(
        failed=NodeTexts(names, known, rows, texts, which),
        unresolvable=NodeTexts(names, known, rows, texts, which, lost),
        counts=_counts(texts, which),
    )


class Refusals:
    """Why each node refuses a request, kept from one attempt of such a pod to the next.

    A pod that fits nowhere is tried again and again, and its brothers with it, while few
    nodes change. Only what has changed since the last time is looked at anew.

    Args:
        pod: The request.

    Attributes:
        texts: The texts that were needed so far, the first for nodes without cards.
        final: For which of them no preemption can help.
        which: For each row the position of its text.
    """

    def __init__(self, pod: PodRequest) -> None:
        self.pod = pod
        self.which: Rows = np.zeros(0, np.int64)
        self._stamp = -1
        self._room: Amount | None = None  # None where it made no difference
        self._clear()

    def _clear(self) -> None:
        self.texts, self.final = [NO_CARDS], [True]
        self._known = {(NO_CARDS, True): 0}
        self._whole: Reasons | None = None

    def update(self, ledger: Ledger, room: Amount) -> None:
        """Take in what has changed in the ledger, and in what the quota leaves."""
        changed = ledger.changed_since(self._stamp)
        other_room = self._room is not None and self._room != room
        if changed is None or other_room or len(changed) > _MANY or len(self.texts) > _MANY:
            self._clear()
            self._room = None
            self.which = self._found(ledger, slice(0, ledger.size), room)
        elif changed:
            rows: Rows = np.fromiter(changed, np.int64, len(changed))
            now = self._found(ledger, rows, room)
            if (self.which[rows] != now).any():
                self.which[rows] = now
                self._whole = None
        self._stamp = ledger.stamp

    def _found(self, ledger: Ledger, rows: Rows | slice, room: Amount) -> Rows:
        texts, final, which, by_room = _texts(ledger, self.pod, rows, room)
        if by_room:
            self._room = room
        for entry in zip(texts, final, strict=True):
            if entry not in self._known:
                self._known[entry] = len(self.texts)
                self.texts.append(entry[0])
                self.final.append(entry[1])
        at = [self._known[entry] for entry in zip(texts, final, strict=True)]
        return np.array(at, np.int64).take(which)

    def whole(self, ledger: Ledger) -> Reasons:
        """Return the reasons of all nodes."""
        if self._whole is None:
            rows = np.sort(ledger.rows_of(ledger.nodes()))
            names = [ledger.name_of(row) for row in rows.tolist()]
            which = self.which[rows]
            self._whole = _reasons(names, ledger, rows, list(self.texts), self.final, which)
        return self._whole


def _refusals(ledger: Ledger, pod: PodRequest, room: Amount) -> Refusals:
    kept = ledger.refusals
    found = kept.pop(id(pod), None)
    if found is None or found.pod is not pod:
        found = Refusals(pod)
    kept[id(pod)] = found
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]
    found.update(ledger, room)
    return found


def _texts(
    ledger: Ledger, pod: PodRequest, where: Rows | slice, room: Amount
) -> tuple[list[str], list[bool], Rows, bool]:
    """Return texts, for which of them no preemption can help, the text of each row, and
    whether the quota was looked at."""
    texts, final = [NO_CARDS], [True]
    rows = np.arange(ledger.size) if isinstance(where, slice) else where
    which = np.zeros(len(rows), np.int64)
    open_ = np.arange(len(rows))  # positions without a text so far
    for request in dict.fromkeys(r for r in pod.containers if r.count):
        part = where if len(open_) == len(rows) else rows[open_]
        lacking, lines = _refused(ledger, pod, request, part)
        distinct, group = _distinct(lines.codes[lacking])
        which[open_[lacking]] = len(texts) + group
        for line in distinct:
            text, lost = _text([lines.words[code] for code in line if code], request)
            texts.append(text)
            final.append(lost)
        open_ = open_[~lacking]
    totals = count_true(ledger.present[rows[open_]])
    over = _over_quota(ledger, pod, rows[open_], room)
    for word, rest in ((QUOTA, over), (TOGETHER, ~over)):
        for total in set(totals[rest].tolist()):
            which[open_[rest & (totals == total)]] = len(texts)
            texts.append(f"{total}/{total} {word}")
            final.append(False)
    return texts, final, which, bool(len(open_))


def _counts(texts: list[str], which: NDArray[np.int64]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text, n in zip(texts, np.bincount(which, minlength=len(texts)).tolist(), strict=True):
        if n:
            counts[text] = counts.get(text, 0) + n
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def _over_quota(ledger: Ledger, pod: PodRequest, rows: Rows, room: Amount) -> Mask:
    """Return the rows whose cards would do and where only the quota forbids."""
    if room.unbounded or not len(rows):
        return np.zeros(len(rows), np.bool_)
    placement = place(ledger, pod, rows, room)
    return placement.fits & ~placement.good


@dataclass(frozen=True, slots=True)
class _Lines:
    """For each row the sorted codes of its cards: 0 no card, 1 fits, else a word."""

    codes: NDArray[np.int8]
    words: list[str]


def _refused(
    ledger: Ledger, pod: PodRequest, request: Request, rows: Rows | slice
) -> tuple[Mask, _Lines]:
    """Return the rows where one container finds too few cards, and why, card by card."""
    words: list[str] = ["", "fits", HEALTH, CORDON, TYPE, MODE]
    constraint = pod.constraint
    codes = ledger.remembered(
        ("refused", pod.vendor, constraint.use_types, constraint.nouse_types),
        lambda: _of_what_they_are(ledger, pod),
    )[rows].copy()
    undecided = codes == 1
    for word, refusal in _conditions(ledger, pod, request, rows):
        words.append(word)
        refusal &= undecided
        np.copyto(codes, len(words) - 1, where=refusal)
        undecided ^= refusal
    if pod.constraint.numa_bind and request.count > 1:
        alone = undecided & ~numa_groups(undecided, request.count, ledger.numa[rows])
        # Where other words say it already, too few cards are left for any NUMA node.
        alone &= (count_true(undecided) >= request.count)[:, None]
        words.append(NUMA)
        codes[alone] = len(words) - 1
        undecided &= ~alone
    lacking: Mask = count_true(undecided) < request.count
    codes.sort(axis=1)
    return lacking, _Lines(codes, words)


def _distinct(codes: NDArray[np.int8]) -> tuple[list[list[int]], NDArray[np.int64]]:
    """Return the distinct lines, and for each line which of them it is."""
    # Eight cards at a time as one word: much fewer comparisons.
    first, group = distinct(np.ascontiguousarray(codes).view(np.uint64))
    return codes[first].tolist(), group


def _text(words: list[str], request: Request) -> tuple[str, bool]:
    """Return a node's text, and whether no preemption can help there."""
    total = len(words)
    if request.count > total:
        return f"{total}/{total} {TOO_FEW}", True
    counts = {word: words.count(word) for word in words if word != "fits"}
    lost = sum(n for word, n in counts.items() if word in _UNRESOLVABLE)
    text = ", ".join(sorted(f"{n}/{total} {word}" for word, n in counts.items()))
    return text, total - lost < request.count


def _of_what_they_are(ledger: Ledger, pod: PodRequest) -> NDArray[np.int8]:
    """Return the codes of all cards that are refused for what they are, the first reason
    of each: 2 health, 3 cordon, 4 type, 5 mode; 1 where there is none, 0 no card."""
    rows = slice(0, ledger.size)
    codes = np.where(ledger.present[rows], 1, 0).astype(np.int8)
    by_type = type_mask(ledger, pod, rows)
    wrong = (~ledger.shareable, None if by_type is None else ~by_type, ledger.cordon)
    for code, refusal in zip((5, 4, 3, 2), (*wrong, ~ledger.healthy), strict=True):
        if refusal is not None:
            codes[(codes != 0) & refusal[rows]] = code
    return codes


def _conditions(
    ledger: Ledger, pod: PodRequest, request: Request, rows: Rows | slice
) -> list[tuple[str, Mask]]:
    """Return the other refusals, those of what is free, in the order in which the first
    one counts."""
    conditions: list[tuple[str, Mask]] = []
    by_uuid = uuid_mask(ledger, pod.constraint, rows)
    if by_uuid is not None:
        conditions.append((UUID, ~by_uuid))
    slots, total = ledger.slots_free[rows], ledger.slots_total[rows]
    need = memory_need(request, ledger.mem_total[rows])
    conditions.append((SLOTS, slots <= 0))
    if card_policy(pod.card_policy).mutex:
        conditions.append((EXCLUSIVE, slots < total))
    conditions.append((MEMORY, ledger.mem_free[rows] < need))
    conditions.append((CORES, ledger.core_free[rows] < request.core_pct))
    if request.core_pct >= EXCLUSIVE_PCT:
        conditions.append((EXCLUSIVE, slots < total))
    if request.core_pct == 0:
        conditions.append((EXHAUSTED, ledger.core_free[rows] <= 0))
    return conditions
