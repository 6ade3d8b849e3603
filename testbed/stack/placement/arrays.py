"""Arrays of rows and cards, and what is asked of them again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Fewer values than this are sorted to find the distinct ones.
_FEW = 256
_SLOT_BITS = 16
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio: Knuth's, for hashes


#: So few NUMA nodes are asked for one by one.
_FEW_NODES = 16


def count_true(cards: Mask) -> Numbers:
    """Return how many cards of each row are true."""
    words = np.bitwise_count(np.ascontiguousarray(cards).view(np.uint64))
    if words.shape[1] == 1:
        return words[:, 0].astype(np.int64, copy=False)
    counts: Numbers = words.sum(axis=1, dtype=np.int64)
    return counts


def distinct(values: NDArray[Any]) -> tuple[Numbers, Numbers]:
    """Return which rows are the first of their kind, in the order of what they hold, and
    for each row its kind.

    As ``numpy.unique`` does, which loads numpy's masked arrays when it is first asked:
    fifty milliseconds in the middle of a decision.

    Args:
        values: A column, or a table of which whole rows are compared.
    """
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    columns = values.reshape(len(values), -1).T
    if len(columns) == 1 and len(values) >= _FEW and values.dtype.itemsize == _FACTOR.itemsize:
        found = _few_kinds(np.ascontiguousarray(columns[0]))
        if found is not None:
            return found
    order = np.argsort(columns[0], kind="stable") if len(columns) == 1 else np.lexsort(columns)
    ordered = columns[:, order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    kinds: Numbers = np.empty(len(order), np.int64)
    kinds[order] = np.cumsum(new) - 1
    return order[new], kinds


def _few_kinds(column: NDArray[Any]) -> tuple[Numbers, Numbers] | None:
    """Return what ``distinct`` does, of a few kinds: by a table instead of by sorting all,
    in a fifth of the time. None where two kinds come to the same place of the table."""
    words = column.view(np.uint64)
    slots: Numbers = ((words * _FACTOR) >> np.uint64(64 - _SLOT_BITS)).view(np.int64)
    number: Numbers = np.arange(len(words))
    table: Numbers = np.empty(1 << _SLOT_BITS, np.int64)
    table[slots[::-1]] = number[::-1]  # of equal places the last one written counts
    firsts = table.take(slots)
    if (words.take(firsts) != words).any():
        return None
    first = np.flatnonzero(firsts == number)
    first = first[np.argsort(column[first], kind="stable")]
    table[slots[first]] = number[: len(first)]
    return first, table.take(slots)


def numa_nodes(numa: Numbers, cards: Mask) -> list[int]:
    """Return the NUMA nodes of some cards, ascending."""
    if cards.size >= _FEW:
        least, most = int(numa.min()), int(numa.max())
        if most - least < _FEW_NODES:
            return [n for n in range(least, most + 1) if (cards & (numa == n)).any()]
    found = numa[cards]
    return sorted(set(found.tolist())) if len(found) < 256 else found[distinct(found)[0]].tolist()
