"""Whether a list of names is that of all nodes, in whatever order: one sum is compared.

A pod that fits nowhere is mostly told so of all nodes, and then the answer of the last time
will do. To look each name up takes ten times as long as to add up a number for each. The
numbers have 64 bits and factors drawn by chance, so two lists that are not the same have
the same sum once in 10^19 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from testbed.stack.placement.arrays import Rows

_WORD = 8
_Words = NDArray[np.uint64]
#: Between two names of a list there are two quotes and a comma.
_BETWEEN = 3


class Roll:
    """The names of all nodes, as a sum.

    A name is read as 64-bit words, some from its begin and the others from its end, so that
    none goes beyond it; in the middle they overlap. Where names are too short for their
    differences in length it is not known how to, and nothing is the list of all.

    Args:
        names: All names, each once.
    """

    def __init__(self, names: Sequence[bytes]) -> None:
        self._count = len(names)
        lengths: Rows = np.fromiter(map(len, names), np.int64, len(names))
        self._shortest = int(lengths.min(initial=1 << 30))
        self._longest = int(lengths.max(initial=0))
        words = -(-self._longest // _WORD)
        self._front = min(words, self._shortest // _WORD)
        self._back = words - self._front
        self._known = self._back + self._front > 0 and self._back * _WORD <= self._shortest
        rng = Random()
        self._factors = [np.uint64(rng.getrandbits(64) | 1) for _ in range(words + 3)]
        ends = np.cumsum(lengths + _BETWEEN) - 2
        self._sum = self._added(b'"' + b'","'.join(names) + b'"', ends - lengths, ends)

    def called(self, raw: bytes, start: int, begins: Rows, ends: Rows) -> bool:
        """Tell whether a list holds these names, each once, and no other.

        Args:
            raw: Bytes with a list as kube-scheduler writes it.
            start: Where the list begins.
            begins, ends: Where each name stands after that.
        """
        if not self._known or len(begins) != self._count:
            return False
        lengths = ends - begins
        if lengths.min() != self._shortest or lengths.max() != self._longest:
            return False
        return self._added(raw, begins + start, ends + start) == self._sum

    def _added(self, raw: bytes, begins: Rows, ends: Rows) -> int:
        if not self._known:
            return 0
        total: _Words = (ends - begins).astype(np.uint64)
        total *= self._factors[0]
        places = [(begins, _WORD * number) for number in range(self._front)]
        places += [(ends, -_WORD * number) for number in range(1, self._back + 1)]
        for factor, (origin, offset) in zip(self._factors[3:], places, strict=True):
            total += self._words(raw, origin, offset) * factor
        # To add up what is linear would not tell which name which word is of.
        for factor in self._factors[1:3]:
            total ^= total >> np.uint64(32)
            total *= factor
        total ^= total >> np.uint64(32)
        return int(total.sum())

    def _words(self, raw: bytes, origin: Rows, offset: int) -> _Words:
        if self._shortest == self._longest:
            steps, first = (self._shortest + _BETWEEN,), int(origin[0]) + offset
            return np.ndarray((len(origin),), "<u8", raw, first, steps)
        every: _Words = np.ndarray((len(raw) - _WORD + 1,), "<u8", raw, strides=(1,))
        return every[origin + offset]
