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
from testbed.stack.placement.arrays import Mask, Numbers, Rows, count_true, distinct
from testbed.stack.placement.choose import numa_groups
from testbed.stack.placement.fit import (
    EXCLUSIVE_PCT,
    felt,
    memory_need,
    place,
    policy_of,
    type_mask,
    uuid_mask,
)
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.offer import Offer
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest

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

#: A card that would do: no reason, and counted with them.
FITS = "fits"
#: Refusals for what a card is, in the order of their codes, from 2 on.
_KINDS = (HEALTH, CORDON, TYPE, MODE)

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
        which, rows = self._which, self._rows
        if self._at is not None:
            which, rows = which[self._at], rows[self._at]
        order = np.argsort(which, kind="stable")  # the nodes of one text together
        rows = rows[order]
        if len(self._known):
            quoted = self._known.take(rows, mode="clip").tolist()
        else:
            quoted = [b""] * len(rows)
        for stranger in np.flatnonzero(rows < 0).tolist():
            at = int(order[stranger])
            at = at if self._at is None else int(self._at[at])
            quoted[stranger] = msgspec.json.encode(self._names[at])
        parts, begin = [], 0
        ends = np.cumsum(np.bincount(which, minlength=len(self._texts))).tolist()
        for text, end in zip(self._texts, ends, strict=True):
            if end > begin:
                value = b":" + msgspec.json.encode(text)
                parts.append((value + b",").join(quoted[begin:end]) + value)
            begin = end
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
    room = felt(ledger, pod, room)
    if offer.is_all(ledger):
        return _refusals(ledger, pod, room).whole(ledger)
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
            rows = ledger.rows_in_use()
            names: list[str] = ledger.all_names()[rows].tolist()
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
        some, group = lines.distinct(lacking)
        which[open_[lacking]] = len(texts) + group
        for line in some:
            text, lost = _text(line, request)
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


class _Lines:
    """For each row how many of its cards have which word; ``FITS`` is one of them.

    Args:
        width: How many cards a row has at most.
    """

    def __init__(self, width: int) -> None:
        self._bits = width.bit_length()
        self._words: list[str] = []
        self._counts: list[Numbers] = []

    def add(self, word: str, counts: Numbers) -> None:
        """Count a word; one may come twice."""
        if counts.any():
            self._words.append(word)
            self._counts.append(counts)

    def distinct(self, lacking: Mask) -> tuple[list[dict[str, int]], Rows]:
        """Return the distinct lines of some rows, and for each of them which it is."""
        at = np.flatnonzero(lacking)
        if not len(at):
            return [], at
        first, group = distinct(self._keys(at))
        chosen = at[first]
        lines: list[dict[str, int]] = [{} for _ in range(len(chosen))]
        for word, counts in zip(self._words, self._counts, strict=True):
            for line, count in zip(lines, counts[chosen].tolist(), strict=True):
                if count:
                    line[word] = line.get(word, 0) + count
        return lines, group

    def _keys(self, at: Rows) -> NDArray[np.int64]:
        """Return what is the same for equal lines: one number, where all counts fit in it."""
        if not self._counts:
            return np.zeros(len(at), np.int64)  # rows without a card
        if self._bits * len(self._counts) >= np.iinfo(np.int64).bits:
            return np.stack([counts[at] for counts in self._counts], axis=1)
        key: Numbers = self._counts[0][at]
        for number, counts in enumerate(self._counts[1:], 1):
            key |= counts[at] << (self._bits * number)
        return key


def _refused(
    ledger: Ledger, pod: PodRequest, request: Request, rows: Rows | slice
) -> tuple[Mask, _Lines]:
    """Return the rows where one container finds too few cards, and why."""
    lines = _Lines(ledger.width)
    wish = pod.constraint
    key = (pod.vendor, wish.use_types, wish.nouse_types)
    codes = ledger.remembered(("refused", *key), lambda: _of_what_they_are(ledger, pod))
    counts = ledger.remembered(("refused counts", *key), lambda: _counted(codes))
    for word, counted in zip(_KINDS, counts, strict=True):
        lines.add(word, counted[rows])
    undecided = codes[rows] == 1
    for word, refusal in _conditions(ledger, pod, request, rows):
        refusal &= undecided
        lines.add(word, count_true(refusal))
        undecided ^= refusal
    fitting = count_true(undecided)
    if pod.constraint.numa_bind and request.count > 1:
        alone = undecided & ~numa_groups(undecided, request.count, ledger.numa[rows])
        # Where other words say it already, too few cards are left for any NUMA node.
        alone &= (fitting >= request.count)[:, None]
        lines.add(NUMA, count_true(alone))
        fitting = fitting - count_true(alone)
    lines.add(FITS, fitting)
    return fitting < request.count, lines


def _text(line: dict[str, int], request: Request) -> tuple[str, bool]:
    """Return a node's text, and whether no preemption can help there."""
    total = sum(line.values())
    if request.count > total:
        return f"{total}/{total} {TOO_FEW}", True
    counts = {word: n for word, n in line.items() if word != FITS}
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


def _counted(codes: NDArray[np.int8]) -> Numbers:
    """Return how many cards of each row have the codes of ``_KINDS`` (codes by rows)."""
    return np.stack([count_true(codes == code) for code in range(2, 2 + len(_KINDS))])


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
    if policy_of(pod.card_policy).mutex:
        conditions.append((EXCLUSIVE, slots < total))
    conditions.append((MEMORY, ledger.mem_free[rows] < need))
    conditions.append((CORES, ledger.core_free[rows] < request.core_pct))
    if request.core_pct >= EXCLUSIVE_PCT:
        conditions.append((EXCLUSIVE, slots < total))
    if request.core_pct == 0:
        conditions.append((EXHAUSTED, ledger.core_free[rows] <= 0))
    return conditions
