"""The nodes that have registered cards: rows, names, cards, links."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.stack.model import MODE_HAMI_CORE, Card
from testbed.stack.placement.arrays import Floats, Numbers, Rows
from testbed.stack.placement.grids import Grids
from testbed.stack.placement.offer import Index
from testbed.stack.placement.roll import Roll

#: Arrays that are remembered of what cards are; each is as large as a grid.
_REMEMBERED = 32
#: So few kinds of nodes are computed with one by one: numpy's calls would take longer.
_FEW_KINDS = 16


def _objects(values: Sequence[object]) -> NDArray[np.object_]:
    found: NDArray[np.object_] = np.empty(len(values), np.object_)
    found[:] = values
    return found


class Nodes(Grids):
    """Which row is which node's, and which column which card's."""

    def __init__(self, *, rows: int, width: int) -> None:
        super().__init__(rows=rows, width=width)
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
        self._cordoned: dict[str, frozenset[str]] = {}
        self._links: dict[int, dict[str, Mapping[str, int]]] = {}
        self._remembered: dict[Hashable, NDArray[Any]] = {}
        self._index: Index | None = None
        self._roll: Roll | None = None
        #: Nodes with the same totals and number of cards are of one kind.
        self._kinds: dict[tuple[int, int, int, int], int] = {}
        self._kind_parts: tuple[Floats, Numbers] = (np.zeros((3, 0)), np.zeros(0, np.int64))
        self._few_kinds: list[tuple[float, float, float, int]] = []

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

    def remove_node(self, name: str) -> None:
        """Forget a node's cards; promises on it stay, in case it returns."""
        row = self._row.pop(name, None)
        if row is None:
            return
        self._clear_row(row)
        self._renew()
        self._cordoned.pop(name, None)
        self._index = self._roll = None
        self._names[row], self._quoted[row] = "", b""
        self._free_rows.append(row)

    @property
    def size(self) -> int:
        """How many rows are in use or were; arrays are read up to here."""
        return len(self._names)

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
        return self.remembered("quoted", lambda: _objects(self._quoted))

    def all_names(self) -> NDArray[np.object_]:
        """Return what ``name_of`` does of every row, as an array."""
        return self.remembered("names", lambda: _objects(self._names))

    def rows_in_use(self) -> Rows:
        """Return the rows of all nodes, ascending."""

        def make() -> Rows:
            return np.sort(np.fromiter(self._row.values(), np.int64, len(self._row)))

        return self.remembered("rows", make)

    def index(self) -> Index:
        """Return what finds the rows of many names."""
        if self._index is None:
            self._index = Index(self._quoted)
        return self._index

    def roll(self) -> Roll:
        """Return what tells whether a list is that of all nodes."""
        if self._roll is None:
            self._roll = Roll([name.encode() for name in self._row])
        return self._roll

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

    def kinds(self) -> tuple[Floats, Numbers]:
        """Return of each kind of node 1 by its slots, memory and cores (three rows), and how
        many cards it has; ``kind`` says which row is of which."""
        if len(self._kind_parts[1]) != len(self._kinds):
            found: Numbers = np.array(list(self._kinds), np.int64).T
            inverse, cards = 1 / np.maximum(found[:3], 1), found[3]
            self._kind_parts = (inverse, cards)
            self._few_kinds = []
            if len(cards) <= _FEW_KINDS:
                self._few_kinds = list(zip(*inverse.tolist(), cards.tolist(), strict=True))
        return self._kind_parts

    def few_kinds(self) -> list[tuple[float, float, float, int]]:
        """Return what ``kinds`` does in plain numbers; empty where there are many kinds."""
        self.kinds()
        return self._few_kinds

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
        self._index = self._roll = None
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
        self._clear(row)

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
