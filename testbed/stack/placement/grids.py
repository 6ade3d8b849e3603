"""Grids of numbers, one row a node and one column a card: totals, and what is left.

The width is a multiple of eight, so that a row of booleans can be read as 64-bit words
and counted (``arrays.count_true``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.stack.placement.arrays import Floats, Mask, Numbers

_WORD = 8  # cards in one 64-bit word of booleans
_MOST_CORE, _MOST_MEM = int(np.iinfo(np.int16).max), int(np.iinfo(np.int32).max)


def _numbers(grid: NDArray[Any]) -> Any:
    """Return a grid's numbers, each to be read and written by row and column."""
    return memoryview(grid)  # type: ignore[arg-type]


class Grids:
    """The arrays, and how one follows from the other. Whose row is whose is not known here."""

    def __init__(self, *, rows: int, width: int) -> None:
        self._capacity = max(1, rows)
        self._width = -(-max(1, width) // _WORD) * _WORD
        self._allocate()

    @property
    def width(self) -> int:
        return self._width

    def _allocate(self) -> None:
        grid = (self._capacity, self._width)
        self.slots_free: Numbers = np.zeros(grid, np.int64)
        self.slots_total: Numbers = np.zeros(grid, np.int64)
        self.mem_free: Numbers = np.zeros(grid, np.int64)
        self.mem_total: Numbers = np.zeros(grid, np.int64)
        self.core_free: Numbers = np.zeros(grid, np.int64)
        self.core_total: Numbers = np.zeros(grid, np.int64)
        self.model: Numbers = np.zeros(grid, np.int64)
        self.numa: Numbers = np.zeros(grid, np.int64)
        self.vendor: Numbers = np.zeros(grid, np.int64)
        self.present: Mask = np.zeros(grid, np.bool_)
        self.healthy: Mask = np.zeros(grid, np.bool_)
        self.cordon: Mask = np.zeros(grid, np.bool_)
        self.shareable: Mask = np.zeros(grid, np.bool_)  # mode hami-core
        self.usable: Mask = np.zeros(grid, np.bool_)  # the four above at once
        #: Usable, with a slot and some cores left: what every request needs.
        self.open: Mask = np.zeros(grid, np.bool_)
        #: Free memory and cores of open cards, -1 of others: small, since every request
        #: looks at all of them.
        self.mem_open: NDArray[np.int32] = np.full(grid, -1, np.int32)
        self.core_open: NDArray[np.int16] = np.full(grid, -1, np.int16)
        #: Sums of a row, for the node's score: used and total of slots, memory, cores.
        self.used: Numbers = np.zeros((self._capacity, 3), np.int64)
        self.total: Numbers = np.zeros((self._capacity, 3), np.int64)
        #: One by each total, and the sum of used by total: a score is one product away.
        self.inverse: Floats = np.zeros((self._capacity, 3))
        self.grade: Floats = np.zeros(self._capacity)
        self.kind: Numbers = np.zeros(self._capacity, np.int64)
        # A single number is had from these in half the time.
        self._slots_at, self._mem_at = _numbers(self.slots_free), _numbers(self.mem_free)
        self._core_at, self._usable_at = _numbers(self.core_free), _numbers(self.usable)
        self._open_at, self._mem_open_at = _numbers(self.open), _numbers(self.mem_open)
        self._core_open_at, self._used_at = _numbers(self.core_open), _numbers(self.used)

    _GRIDS = (
        "slots_free", "slots_total", "mem_free", "mem_total", "core_free", "core_total",
        "model", "numa", "vendor", "present", "healthy", "cordon", "shareable", "usable", "open",
        "mem_open", "core_open",
    )  # fmt: skip

    def _resize(self, capacity: int, width: int) -> None:
        rows, columns = self._capacity, self._width
        flat = ("used", "total", "inverse", "grade", "kind")
        old = {name: getattr(self, name) for name in (*self._GRIDS, *flat)}
        self._capacity, self._width = capacity, width
        self._allocate()
        for name in self._GRIDS:
            getattr(self, name)[:rows, :columns] = old[name]
        for name in flat:
            getattr(self, name)[:rows] = old[name]

    def _widen(self, cards: int) -> None:
        self._resize(self._capacity, -(-cards // _WORD) * _WORD)

    def _clear(self, row: int) -> None:
        for name in self._GRIDS:
            getattr(self, name)[row] = 0
        self.mem_open[row] = self.core_open[row] = -1
        self.used[row] = 0
        self.total[row] = 0
        self.inverse[row] = 0
        self.grade[row] = 0

    def _reset(self, rows: int | slice) -> None:
        """Compute the free values of a row, or of some, as if nothing were promised."""
        totals = (self.slots_total[rows], self.mem_total[rows], self.core_total[rows])
        self.slots_free[rows], self.mem_free[rows], self.core_free[rows] = totals
        self.total[rows] = np.stack([total.sum(axis=-1) for total in totals], axis=-1)
        self.inverse[rows] = 1 / np.maximum(self.total[rows], 1)
        self.used[rows] = 0
        self._derive(rows)

    def _derive(self, rows: int | slice) -> None:
        """Compute what follows from the free values of a row, or of some."""
        self.grade[rows] = (self.used[rows] * self.inverse[rows]).sum(axis=-1)
        mem, core = self.mem_free[rows], self.core_free[rows]
        open_ = self.usable[rows] & (self.slots_free[rows] > 0) & (core > 0)
        self.open[rows] = open_
        self.mem_open[rows] = np.where(open_, np.clip(mem, -1, _MOST_MEM), -1)
        self.core_open[rows] = np.where(open_, np.minimum(core, _MOST_CORE), -1)

    def _take(self, place: tuple[int, int], slots: int, mem: int, core: int) -> None:
        """Take from a card, and derive what follows of it: plain numbers, since numpy's
        calls on a row cost more than the work."""
        slots_left = self._slots_at[place] - slots
        mem_left = self._mem_at[place] - mem
        core_left = self._core_at[place] - core
        self._slots_at[place], self._mem_at[place] = slots_left, mem_left
        self._core_at[place] = core_left
        open_ = self._usable_at[place] and slots_left > 0 and core_left > 0
        self._open_at[place] = open_
        self._mem_open_at[place] = max(-1, min(mem_left, _MOST_MEM)) if open_ else -1
        self._core_open_at[place] = min(core_left, _MOST_CORE) if open_ else -1
