"""The ledger: every card of every node, and what is left of it.

A structure of arrays, one row a node and one column a card, so that a question
about all cards is one expression. The width is a multiple of eight, so that a row
of booleans can be read as 64-bit words and counted (``count_true``).

Truth is kept by pod (uid) and card (uuid): a node that re-registers, or registers
after its pods were seen, gets its free values recomputed from the promises, and a
promise on a card that is not registered waits without harm (HAMi #2592). Whoever
wrote a promise twice or released it twice changes nothing (HAMi #1966, volcano #4809).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from testbed.stack.model import MODE_HAMI_CORE, Card
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.offer import Index

if TYPE_CHECKING:
    from testbed.stack.placement.outlook import Outlook
    from testbed.stack.placement.reasons import Refusals

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]

_WORD = 8  # cards in one 64-bit word of booleans
_MOST_CORE, _MOST_MEM = int(np.iinfo(np.int16).max), int(np.iinfo(np.int32).max)
#: Arrays that are remembered of what cards are; each is as large as a grid.
_REMEMBERED = 32
#: Changes of rows that are remembered.
_CHANGES = 4096


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
    order = np.argsort(columns[0], kind="stable") if len(columns) == 1 else np.lexsort(columns)
    ordered = columns[:, order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    kinds: Numbers = np.empty(len(order), np.int64)
    kinds[order] = np.cumsum(new) - 1
    return order[new], kinds


def _numbers(grid: NDArray[Any]) -> Any:
    """Return a grid's numbers, each to be read and written by row and column."""
    return memoryview(grid)  # type: ignore[arg-type]


def numa_nodes(numa: Numbers, cards: Mask) -> list[int]:
    """Return the NUMA nodes of some cards, ascending."""
    found = numa[cards]
    return sorted(set(found.tolist())) if len(found) < 256 else found[distinct(found)[0]].tolist()


@dataclass(frozen=True, slots=True)
class Promise:
    """What one pod holds on one node."""

    node: str
    charges: tuple[tuple[str, Charge], ...]


#: A promise as it is kept: the node, then uuid, slots, MiB and percent of each card. A
#: hundred thousand objects with maps would need three times the memory.
Held = tuple[Any, ...]
_CHARGE = 4


def _charges(held: Held) -> Iterator[tuple[str, int, int, int]]:
    return zip(held[1::4], held[2::4], held[3::4], held[4::4], strict=True)


class Ledger:
    """Cards, promises and free values. Not thread-safe: one event loop owns it."""

    def __init__(self, *, rows: int = 64, width: int = _WORD) -> None:
        self._capacity = max(1, rows)
        self._width = -(-max(1, width) // _WORD) * _WORD
        self._names: list[str] = []  # by row; "" where the row is free
        self._quoted: list[bytes] = []
        self._row: dict[str, int] = {}
        self._free_rows: list[int] = []
        self._cards: list[tuple[Card, ...]] = []
        self._models: dict[str, int] = {}
        self._vendors: dict[str, int] = {}
        #: (row, column) of each uuid, made when pods name cards: it needs as much memory as
        #: the cards themselves.
        self._places: dict[str, list[tuple[int, int]]] | None = None
        self._promises: dict[str, Held] = {}
        self._by_node: dict[str, list[str]] = {}  # few pods: a set needs ten times as much
        self._cordoned: dict[str, frozenset[str]] = {}
        self._links: dict[int, dict[str, Mapping[str, int]]] = {}
        self._remembered: dict[Hashable, NDArray[Any]] = {}
        self._index: Index | None = None
        self._books = True
        self._changes: list[int] = []  # the rows of the last changes
        self._forgotten = 0  # how many changes there were before those
        #: Nodes with the same totals and number of cards are of one kind.
        self._kinds: dict[tuple[int, int, int, int], int] = {}
        self._kind_parts: tuple[Floats, Numbers] = (np.zeros((3, 0)), np.zeros(0, np.int64))
        #: What ``outlook`` keeps with the ledger, by the identity of a request.
        self.outlooks: dict[int, Outlook] = {}
        #: And what ``reasons`` keeps.
        self.refusals: dict[int, Refusals] = {}
        self._allocate()

    # --- nodes -----------------------------------------------------------

    def set_node(
        self,
        name: str,
        cards: Sequence[Card],
        cordoned: Iterable[str] = (),
        links: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Register a node's cards, or register them anew.

        Columns follow the cards' index, so that a container's devices come out in
        the order in which the driver counts them.

        Args:
            name: The node.
            cards: All its cards.
            cordoned: Uuids of cards that take no new pods.
            links: What the link between two cards is worth, by uuid and uuid.
        """
        if not cards:
            self.remove_node(name)
            return
        ordered = tuple(sorted(cards, key=lambda card: (card.index, card.uuid)))
        if len(ordered) > self._width:
            self._widen(len(ordered))
        row = self._row.get(name)
        if row is None:
            row = self._take_row(name)
        self._clear_row(row)
        self._cards[row] = ordered
        self._cordoned[name] = frozenset(cordoned)
        if links:
            self._links[row] = dict(links)
        self._write_cards(row, ordered, self._cordoned[name])
        self._renew()
        if self._books:
            self._recount(row)
        else:
            self.slots_free[row], self.mem_free[row] = self.slots_total[row], self.mem_total[row]
            self.core_free[row] = self.core_total[row]

    def remove_node(self, name: str) -> None:
        """Forget a node's cards; promises on it stay, in case it returns."""
        row = self._row.pop(name, None)
        if row is None:
            return
        self._clear_row(row)
        self._renew()
        self._cordoned.pop(name, None)
        self._index = None
        self._names[row], self._quoted[row] = "", b""
        self._free_rows.append(row)

    @property
    def size(self) -> int:
        """How many rows are in use or were; arrays are read up to here."""
        return len(self._names)

    @property
    def width(self) -> int:
        return self._width

    def nodes(self) -> list[str]:
        """Return the names of the registered nodes, sorted."""
        return sorted(self._row)

    def are_all(self, rows: Rows) -> bool:
        """Tell whether some rows are those of all nodes, each once."""
        if len(rows) != len(self._row) or not len(rows) or rows.min() < 0:
            return False
        return int(np.count_nonzero(np.bincount(rows))) == len(rows)

    def row_of(self, name: str) -> int | None:
        return self._row.get(name)

    def rows_of(self, names: Sequence[str]) -> Rows:
        """Return the row of each name, -1 where it has no cards."""
        return np.fromiter(map(self._row.get, names, repeat(-1)), np.int64, len(names))

    def name_of(self, row: int) -> str:
        return self._names[row]

    def quoted(self, row: int) -> bytes:
        """Return the node's name as it stands in JSON: names hold no escapes."""
        return self._quoted[row]

    def all_quoted(self) -> NDArray[np.object_]:
        """Return what ``quoted`` does of every row, as an array."""

        def make() -> NDArray[np.object_]:
            found: NDArray[np.object_] = np.empty(len(self._quoted), np.object_)
            found[:] = self._quoted
            return found

        return self.remembered("quoted", make)

    def index(self) -> Index:
        """Return what finds the rows of many names."""
        if self._index is None:
            self._index = Index(self._quoted)
        return self._index

    def cards_of(self, name: str) -> tuple[Card, ...]:
        """Return the node's cards in the order of their index."""
        row = self._row.get(name)
        return () if row is None else self._cards[row]

    def cordoned(self, name: str) -> frozenset[str]:
        return self._cordoned.get(name, frozenset())

    def places_of(self, uuid: str) -> Iterable[tuple[int, int]]:
        """Return (row, column) of a card; more than one if nodes share a uuid."""
        if self._places is None:
            self._places = {}
            for row, cards in enumerate(self._cards):
                for column, card in enumerate(cards):
                    self._places.setdefault(card.uuid, []).append((row, column))
        return self._places.get(uuid, ())

    def _columns(self, row: int, uuid: str) -> list[int]:
        return [column for column, card in enumerate(self._cards[row]) if card.uuid == uuid]

    def models(self) -> list[str]:
        """Return the model names; position i has id i in ``model``."""
        return list(self._models)

    def vendor_ids(self) -> dict[str, int]:
        """Return the ids in ``vendor`` by the vendors' words."""
        return self._vendors

    def remembered(self, key: Hashable, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return what was made for a key before, while no node has changed since.

        For grids that follow from what cards are and not from what is free of them:
        requests of a cluster ask for the same few types and percentages again and again.

        Args:
            key: Of everything that the grid depends on.
            make: Makes it, for ``size`` rows; not to be changed afterwards.
        """
        found = self._remembered.get(key)
        if found is None:
            found = make()
            if len(self._remembered) >= _REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = found
        return found

    def _renew(self) -> None:
        """Note that a node has changed, and with it what follows from what cards are."""
        self._remembered.clear()
        self._forgotten += len(self._changes) + 1
        self._changes.clear()

    @property
    def stamp(self) -> int:
        """A number that grows with each change."""
        return self._forgotten + len(self._changes)

    def changed_since(self, stamp: int) -> set[int] | None:
        """Return the rows on which something else is free than at a stamp; None if that is
        not known any more, or if nodes came, went or changed."""
        at = stamp - self._forgotten
        return set(self._changes[at:]) if at >= 0 else None

    def _note(self, row: int) -> None:
        self._changes.append(row)
        if len(self._changes) > _CHANGES:
            self._forgotten += _CHANGES // 2
            del self._changes[: _CHANGES // 2]

    def kinds(self) -> tuple[Floats, Numbers]:
        """Return of each kind of node 1 by its slots, memory and cores (three rows), and how
        many cards it has; ``kind`` says which row is of which."""
        if len(self._kind_parts[1]) != len(self._kinds):
            found: Numbers = np.array(list(self._kinds), np.int64).T
            self._kind_parts = (1 / np.maximum(found[:3], 1), found[3])
        return self._kind_parts

    # --- promises --------------------------------------------------------

    def promise(self, uid: str, node: str, charges: Mapping[str, Charge]) -> None:
        """Charge a pod's shares to a node's cards, in place of what it held before."""
        flat: list[Any] = [node]
        for uuid, charge in charges.items():
            flat += (uuid, charge.slots, charge.mem_mib, charge.core_pct)
        self.hold(uid, tuple(flat))

    def hold(self, uid: str, held: Held) -> None:
        """Do what ``promise`` does, for charges in the form in which they are kept."""
        if uid in self._promises:
            self.release(uid)
        self._promises[uid] = held
        pods = self._by_node.get(held[0])
        if pods is None:
            pods = self._by_node[held[0]] = []
        pods.append(uid)
        if self._books:
            self._book(held, +1)

    def release(self, uid: str) -> bool:
        """Give back what a pod holds; False if it holds nothing."""
        held = self._promises.pop(uid, None)
        if held is None:
            return False
        pods = self._by_node[held[0]]
        pods.remove(uid)
        if not pods:
            del self._by_node[held[0]]
        if self._books:
            self._book(held, -1)
        return True

    def close_books(self) -> None:
        """Note promises only, until ``open_books``: a hundred thousand at a start."""
        self._books = False

    def open_books(self) -> None:
        """Compute every free value from the promises, and keep them from now on."""
        if self._books:
            return
        self._books = True
        self._renew()
        self._reset(slice(0, self.size))
        rows, columns, amounts = array("q"), array("q"), array("q")
        for node, uids in self._by_node.items():
            row = self._row.get(node)
            if row is None:
                continue
            where_is: dict[str, list[int]] = {}
            for column, card in enumerate(self._cards[row]):
                where_is.setdefault(card.uuid, []).append(column)
            for uid in uids:
                held = self._promises[uid]
                for at in range(1, len(held), _CHARGE):
                    for column in where_is.get(held[at], ()):
                        rows.append(row)
                        columns.append(column)
                        amounts.extend(held[at + 1 : at + _CHARGE])
        taken = np.array(amounts, np.int64).reshape(-1, 3)
        where = (np.array(rows, np.int64), np.array(columns, np.int64))
        for grid, part in ((self.slots_free, 0), (self.mem_free, 1), (self.core_free, 2)):
            np.subtract.at(grid, where, taken[:, part])
        np.add.at(self.used, where[0], taken)
        self._derive(slice(0, self.size))

    def promises_on(self, node: str) -> list[str]:
        """Return the uids of the pods that hold shares of a node."""
        return list(self._by_node.get(node, ()))

    def links(self, rows: Rows | slice) -> Numbers:
        """Return what links are worth (rows by cards by cards); 0 where nobody says.

        A link counts the same from both ends, the larger of what they say.
        """
        found = range(*rows.indices(self.size)) if isinstance(rows, slice) else rows.tolist()
        worth: Numbers = np.zeros((len(found), self._width, self._width), np.int64)
        for at, row in enumerate(found):
            said = self._links.get(row)
            if said is None:
                continue
            column = {card.uuid: i for i, card in enumerate(self._cards[row])}
            for uuid, others in said.items():
                for other, value in others.items():
                    if uuid in column and other in column and uuid != other:
                        a, b = column[uuid], column[other]
                        worth[at, a, b] = worth[at, b, a] = max(worth[at, a, b], value)
        return worth

    def promised(self, uid: str) -> Promise | None:
        """Return what a pod holds; None if it holds nothing."""
        held = self._promises.get(uid)
        if held is None:
            return None
        return Promise(
            held[0],
            tuple(
                (uuid, Charge(slots=slots, mem_mib=mem, core_pct=core))
                for uuid, slots, mem, core in _charges(held)
            ),
        )

    def held(self, uid: str) -> Held:
        """Return what a pod holds, as it is kept; empty if it holds nothing."""
        return self._promises.get(uid, ())

    def unknown_cards(self, uid: str) -> tuple[str, ...]:
        """Return the uuids of a promise that its node has not registered."""
        held = self._promises.get(uid)
        if held is None:
            return ()
        known = {card.uuid for card in self.cards_of(held[0])}
        return tuple(sorted(set(held[1::4]) - known))

    def usage(self, name: str) -> Iterator[tuple[Card, Charge]]:
        """Yield a node's cards with what is taken from each."""
        row = self._row.get(name)
        if row is None:
            return
        for column, card in enumerate(self._cards[row]):
            yield (
                card,
                Charge(
                    slots=int(self.slots_total[row, column] - self.slots_free[row, column]),
                    mem_mib=int(self.mem_total[row, column] - self.mem_free[row, column]),
                    core_pct=int(self.core_total[row, column] - self.core_free[row, column]),
                ),
            )

    # --- arrays ----------------------------------------------------------

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

    def _take_row(self, name: str) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._names)
            if row == self._capacity:
                self._resize(self._capacity * 2, self._width)
            self._names.append("")
            self._quoted.append(b"")
            self._cards.append(())
        self._index = None
        self._names[row] = name
        self._quoted[row] = b'"' + name.encode() + b'"'
        self._row[name] = row
        return row

    def _clear_row(self, row: int) -> None:
        if not self._cards[row]:
            return  # nothing was ever written there, or it is cleared
        self._places = None
        self._cards[row] = ()
        self._links.pop(row, None)
        for name in self._GRIDS:
            getattr(self, name)[row] = 0
        self.mem_open[row] = self.core_open[row] = -1
        self.used[row] = 0
        self.total[row] = 0
        self.inverse[row] = 0
        self.grade[row] = 0

    def _write_cards(self, row: int, cards: tuple[Card, ...], cordoned: frozenset[str]) -> None:
        self._places = None
        models, vendors = self._models, self._vendors
        here = (row, slice(0, len(cards)))  # a row at once: numpy's calls are what takes time
        self.slots_total[here] = [card.slots for card in cards]
        self.mem_total[here] = [card.mem_mib for card in cards]
        self.core_total[here] = [card.core_pct for card in cards]
        self.model[here] = [models.setdefault(card.model, len(models)) for card in cards]
        self.numa[here] = [card.numa for card in cards]
        self.vendor[here] = [vendors.setdefault(card.vendor, len(vendors)) for card in cards]
        self.present[here] = True
        self.healthy[here] = [card.healthy for card in cards]
        self.cordon[here] = [card.uuid in cordoned for card in cards]
        self.shareable[here] = [card.mode == MODE_HAMI_CORE for card in cards]
        self.usable[here] = self.healthy[here] & ~self.cordon[here] & self.shareable[here]
        sums = (sum(c.slots for c in cards), sum(c.mem_mib for c in cards))
        kind = (*sums, sum(c.core_pct for c in cards), len(cards))
        self.kind[row] = self._kinds.setdefault(kind, len(self._kinds))

    def _recount(self, row: int) -> None:
        """Compute a row's free values from the promises on it."""
        self._reset(row)
        for uid in self._by_node.get(self._names[row], ()):
            self._book(self._promises[uid], +1)

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

    def _book(self, held: Held, sign: int) -> None:
        row = self._row.get(held[0])
        if row is None:
            return
        taken = [0, 0, 0]
        for uuid, slots, mem, core in _charges(held):
            for column in self._columns(row, uuid):
                self._take((row, column), sign * slots, sign * mem, sign * core)
                taken[0] += sign * slots
                taken[1] += sign * mem
                taken[2] += sign * core
        if any(taken):
            self._note(row)
            used, grade = self._used_at, 0.0
            for part, inverse in enumerate(self.inverse[row].tolist()):
                used[row, part] += taken[part]
                grade += used[row, part] * inverse  # in the order in which numpy adds
            self.grade[row] = grade

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
