"""The nodes that the scheduler offers: ``NodeNames``, as the bytes that it sent.

Five thousand names come in another order with each request. To make strings of them and
look each up takes longer than the decision, so single names are searched in the bytes,
and where all are needed their rows are found by arithmetic on the bytes (``Index``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import CodecError

if TYPE_CHECKING:
    from testbed.stack.placement.arrays import Mask, Rows
    from testbed.stack.placement.ledger import Ledger

#: A search in more bytes than this prepares itself for long needles, and is slower.
_WINDOW = 8000
#: Fewer names than this are looked up one by one.
_FEW = 64
_QUOTE, _COMMA = ord('"'), ord(",")
_WORD = 8
#: A cluster of any size needs three; names that cannot be told apart would need more.
_MOST_TABLES = 8

_decode_names = msgspec.json.Decoder(list[str]).decode
_Words = NDArray[np.uint64]


class Offer(Sequence[str]):
    """The node names that the scheduler offers, decoded when needed.

    Args:
        raw: Bytes that hold the list, as JSON.
        start, end: Where it stands in them.
    """

    def __init__(self, raw: bytes, start: int = 0, end: int | None = None) -> None:
        self._raw = raw
        self._start, self._end = start, len(raw) if end is None else end
        self._names: list[str] | None = None
        self._spans: tuple[Rows, Rows] | None = None

    @classmethod
    def of(cls, names: Sequence[str]) -> Offer:
        return cls(msgspec.json.encode(list(names)))

    @property
    def raw(self) -> bytes:
        """Return the list as it was sent."""
        return self._raw[self._start : self._end]

    @property
    def names(self) -> list[str]:
        """Return all names.

        Raises:
            CodecError: the value is not a list of strings.
        """
        if self._names is None:
            try:
                self._names = _decode_names(memoryview(self._raw)[self._start : self._end])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise CodecError("NodeNames cannot be read", why=str(error)) from error
        return self._names

    def __len__(self) -> int:
        spans = self._plain_spans() if self._names is None else None
        return len(self.names) if spans is None else len(spans[0])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.names[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def holds(self, quoted: bytes) -> bool:
        """Tell whether a name is offered, given as it stands in JSON."""
        raw, at, end = self._raw, self._start, self._end
        if self._stands(quoted):
            return True
        while at < end:
            if raw.find(quoted, at, min(at + _WINDOW, end)) >= 0:
                return True
            at += _WINDOW - len(quoted) + 1
        return False

    def _stands(self, quoted: bytes) -> bool:
        """Tell whether a name is found where it stands if all names are as long as it is;
        False says nothing."""
        raw, first, size = self._raw, self._start + 1, len(quoted)
        count, rest = divmod(self._end - first, size + 1)
        if rest or count < _FEW or size < _WORD:
            return False
        # Names of a cluster differ in few places: eight bytes from there on are compared.
        name, differ = int.from_bytes(quoted, "big"), 0
        for place in (first, first + (size + 1) * (count // 2)):
            other = int.from_bytes(raw[place : place + size], "big")
            differ = max(differ, (name ^ other).bit_length())
        at = min(size - (differ + 7) // 8, size - _WORD)
        words: _Words = np.ndarray((count,), "<u8", raw, first + at, (size + 1,))
        word = np.uint64(int.from_bytes(quoted[at : at + _WORD], "little"))
        return raw.startswith(quoted, first + (size + 1) * int((words == word).argmax()))

    def rows(self, ledger: Ledger) -> Rows:
        """Return the row of each name, -1 where it has no cards.

        Raises:
            CodecError: as ``names``.
        """
        spans = self._plain_spans() if self._names is None else None
        if spans is None or len(spans[0]) < _FEW:
            return ledger.rows_of(self.names)
        found = ledger.index().rows(self.raw, *spans)
        return ledger.rows_of(self.names) if found is None else found

    def is_all(self, ledger: Ledger) -> bool:
        """Tell whether all nodes of the ledger are offered, each once, and no others; False
        also where that is not known without a look at each."""
        spans = self._plain_spans() if self._names is None else None
        return spans is not None and ledger.roll().called(self._raw, self._start, *spans)

    def offered(self, ledger: Ledger) -> Mask:
        """Return, for every row, whether its node is offered.

        Raises:
            CodecError: as ``names``.
        """
        mask: Mask = np.zeros(ledger.size, np.bool_)
        rows = self.rows(ledger)
        mask[rows[rows >= 0]] = True
        return mask

    def _plain_spans(self) -> tuple[Rows, Rows] | None:
        """Return where each name begins and ends in ``raw``; None where the list is not
        written as kube-scheduler does, without any space or escape."""
        if self._spans is None:
            self._spans = self._even_spans()
        if self._spans is None:
            text = np.frombuffer(self._raw, np.uint8, self._end - self._start, self._start)
            quotes = np.flatnonzero(text == _QUOTE)
            if len(quotes) < 2 or len(quotes) % 2 or quotes[0] != 1 or quotes[-1] != len(text) - 2:
                return None
            begins, ends = quotes[0::2] + 1, quotes[1::2]
            # Between two names there are two quotes and a comma, and nothing else.
            if (begins[1:] - ends[:-1] != 3).any() or (text[ends[:-1] + 1] != _COMMA).any():
                return None
            if self._raw.find(b"\\", self._start, self._end) >= 0:
                return None
            self._spans = (begins, ends)
        return self._spans

    def _even_spans(self) -> tuple[Rows, Rows] | None:
        """Return what ``_plain_spans`` does where all names are of one length; None where they
        are not."""
        raw, first = self._raw, self._start + 1
        size = raw.find(b'"', first + 1, self._end) - first - 1
        if size <= 0:
            return None
        count, rest = divmod(self._end - first, size + 3)
        if rest or count < _FEW:
            return None
        cells = np.ndarray((count, size + 3), np.uint8, raw, first)
        if (cells[:, 0] != _QUOTE).any() or (cells[:, size + 1] != _QUOTE).any():
            return None
        if (cells[:-1, size + 2] != _COMMA).any() or raw.find(b"\\", first, self._end) >= 0:
            return None
        if np.count_nonzero(cells == _QUOTE) != 2 * count:
            return None
        begins: Rows = np.arange(2, 2 + count * (size + 3), size + 3)
        return begins, begins + size


class Index:
    """Finds the rows of many names at once, from their bytes.

    A name is compared as 64-bit words, eight bytes each and zeros after its end. A table
    by a hash says at which row to look; rows that find their place taken go to a second
    table by another hash, and so on. Should there be rows that never find one, the index
    is of no use.

    Args:
        quoted: Names by row as they stand in JSON; rows that are free are empty.
    """

    def __init__(self, quoted: Sequence[bytes]) -> None:
        names = [word[1:-1] for word in quoted]
        self._lengths: NDArray[np.int64] = np.fromiter(map(len, names), np.int64, len(names))
        count = -(-max(1, int(self._lengths.max(initial=1))) // _WORD)
        text = b"".join(name.ljust(count * _WORD, b"\0") for name in names)
        self._words: list[_Words] = list(
            np.frombuffer(text, "<u8").reshape(len(names), count).T.copy()
        )
        self._masks: _Words = np.array([(1 << 8 * n) - 1 for n in range(_WORD + 1)], np.uint64)
        self._shift = np.uint64(64 - max(4, (4 * len(names)).bit_length()))
        self._tables: list[tuple[_Words, Rows]] = []
        left, rng = np.flatnonzero(self._lengths), Random(len(names))
        while len(left) and len(self._tables) < _MOST_TABLES:
            table, left = self._table(left, rng)
            self._tables.append(table)
        self._complete = not len(left)

    def _table(self, rows: Rows, rng: Random) -> tuple[tuple[_Words, Rows], NDArray[np.int64]]:
        """Return factors and table, and the rows that found no place in it."""
        factors = np.array([rng.getrandbits(64) | 1 for _ in self._words], np.uint64)
        table = np.full(1 << (64 - int(self._shift)), -1, np.int64)
        slots = self._slots([words[rows] for words in self._words], factors)
        table[slots] = rows
        return (factors, table), rows[table[slots] != rows]

    def _slots(self, words: list[_Words], factors: _Words) -> Rows:
        total: _Words = np.zeros(len(words[0]), np.uint64)
        for word, factor in zip(words, factors, strict=True):
            total += word * factor
            total ^= total >> np.uint64(29)
        slots: Rows = ((total * factors[0]) >> self._shift).view(np.int64)
        return slots

    def rows(self, raw: bytes, begins: Rows, ends: Rows) -> Rows | None:
        """Return the row of each name, -1 where there is none; None where that cannot be
        told this way.

        Args:
            raw: Bytes with the names.
            begins, ends: Where each of them stands.
        """
        if not self._complete:
            return None
        count = len(self._words)
        padded = raw + bytes(count * _WORD)
        at_byte: NDArray[Any] = np.ndarray(
            (len(padded) - _WORD + 1,), "<u8", buffer=padded, strides=(1,)
        )
        lengths = ends - begins
        words = []
        shortest = int(lengths.min())
        for number in range(count):
            if shortest >= (number + 1) * _WORD:
                words.append(at_byte[begins + number * _WORD])
                continue
            rest = np.minimum(lengths - number * _WORD, _WORD)
            np.maximum(rest, 0, out=rest)
            # A name that ended before is read where it began, and masked away.
            where = begins + np.where(rest > 0, number * _WORD, 0)
            words.append(at_byte[where] & self._masks.take(rest))
        found: Rows | None = None
        left: Rows = np.zeros(0, np.int64)  # where names stand that are not found yet
        for factors, table in self._tables:
            rows = table.take(self._slots(words, factors))
            same = self._lengths.take(rows) == lengths
            for mine, theirs in zip(self._words, words, strict=True):
                same &= mine.take(rows) == theirs
            rows = np.where(same & (rows >= 0), rows, -1)
            other = np.flatnonzero(rows < 0)
            if found is None:
                found, left = rows, other
            else:
                found[left] = rows
                left = left[other]
            if not len(left):
                break
            lengths, words = lengths[other], [word[other] for word in words]
        return found
