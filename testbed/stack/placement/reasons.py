"""Why a pod does not fit, node by node, in HAMi's words.

The scheduler's event groups nodes by identical text, so each node gets few words:
the count of cards for each, such as ``2/8 CardInsufficientMemory, 6/8 CardTypeMismatch``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from testbed.stack.model import Request
from testbed.stack.placement.fit import EXCLUSIVE_PCT, memory_need, type_mask, uuid_mask
from testbed.stack.placement.ledger import Ledger, Mask, Rows
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
EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
EXHAUSTED = "CardComputeUnitsExhausted"
TOO_FEW = "NodeInsufficientDevice"
TOGETHER = "AllocatedCardsInsufficientRequest"

#: No pod's end will help against these: preemption need not try such a node.
_UNRESOLVABLE = {HEALTH, CORDON, MODE, TYPE, UUID}


@dataclass(slots=True)
class Reasons:
    """Texts by node; ``unresolvable`` holds those that no preemption can mend."""

    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)


def explain(ledger: Ledger, pod: PodRequest, names: list[str]) -> Reasons:
    """Return a reason for every name.

    A node is explained by the first container that finds no cards on its own; where
    each would, they do not fit together.
    """
    reasons = Reasons()
    at = {name: ledger.row_of(name) for name in names}
    rows = np.array([row for row in at.values() if row is not None], np.int64)
    texts: dict[int, tuple[str, bool]] = {}
    for request in dict.fromkeys(r for r in pod.containers if r.count):
        if len(rows):
            refused = _refused(ledger, pod, request, rows)
            texts.update(refused)
            rows = np.array([row for row in rows.tolist() if row not in refused], np.int64)
    for name, row in at.items():
        if row is None:
            text, final = NO_CARDS, True
        else:
            text, final = texts.get(row) or (_together(ledger, row), False)
        reasons.failed[name] = text
        if final:
            reasons.unresolvable[name] = text
    return reasons


def _refused(
    ledger: Ledger, pod: PodRequest, request: Request, rows: Rows
) -> dict[int, tuple[str, bool]]:
    """Return text and unresolvability of the rows where one container finds no cards."""
    words: list[str] = ["", "fits"]
    codes = np.where(ledger.present[rows], 1, 0).astype(np.int8)
    undecided = codes == 1
    for word, refusal in _conditions(ledger, pod, request, rows):
        words.append(word)
        hit = undecided & refusal
        codes[hit] = len(words) - 1
        undecided &= ~hit
    lacking = (codes == 1).sum(axis=1) < request.count
    rows, codes = rows[lacking], np.sort(codes[lacking], axis=1)
    # Thousands of nodes share a handful of texts: each is made once.
    made: dict[bytes, tuple[str, bool]] = {}
    result: dict[int, tuple[str, bool]] = {}
    for row, line in zip(rows.tolist(), codes, strict=True):
        key = line.tobytes()
        if key not in made:
            made[key] = _text([words[code] for code in key if code], request)
        result[row] = made[key]
    return result


def _text(words: list[str], request: Request) -> tuple[str, bool]:
    total = len(words)
    if request.count > total:
        return f"{total}/{total} {TOO_FEW}", True
    counts = {word: words.count(word) for word in words if word != "fits"}
    lost = sum(n for word, n in counts.items() if word in _UNRESOLVABLE)
    text = ", ".join(sorted(f"{n}/{total} {word}" for word, n in counts.items()))
    return text, total - lost < request.count


def _together(ledger: Ledger, row: int) -> str:
    total = len(ledger.cards_of(ledger.name_of(row)))
    return f"{total}/{total} {TOGETHER}"


def _conditions(
    ledger: Ledger, pod: PodRequest, request: Request, rows: Rows
) -> list[tuple[str, Mask]]:
    """Return the refusals in the order in which the first one counts."""
    conditions: list[tuple[str, Mask]] = [
        (HEALTH, ~ledger.healthy[rows]),
        (CORDON, ledger.cordon[rows]),
        (MODE, ~ledger.shareable[rows]),
    ]
    by_type = type_mask(ledger, pod.constraint, rows)
    if by_type is not None:
        conditions.append((TYPE, ~by_type))
    by_uuid = uuid_mask(ledger, pod.constraint, rows)
    if by_uuid is not None:
        conditions.append((UUID, ~by_uuid))
    slots, total = ledger.slots_free[rows], ledger.slots_total[rows]
    need = memory_need(request, ledger.mem_total[rows])
    conditions.append((SLOTS, slots <= 0))
    conditions.append((MEMORY, ledger.mem_free[rows] < need))
    conditions.append((CORES, ledger.core_free[rows] < request.core_pct))
    if request.core_pct >= EXCLUSIVE_PCT:
        conditions.append((EXCLUSIVE, slots < total))
    if request.core_pct == 0:
        conditions.append((EXHAUSTED, ledger.core_free[rows] <= 0))
    return conditions
