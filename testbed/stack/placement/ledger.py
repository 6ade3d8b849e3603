"""The ledger: every card of every node, and what is left of it.

A structure of arrays (``grids``), one row a node and one column a card (``nodes``), so
that a question about all cards is one expression.

Truth is kept by pod (uid) and card (uuid): a node that re-registers, or registers
after its pods were seen, gets its free values recomputed from the promises, and a
promise on a card that is not registered waits without harm (HAMi #2592). Whoever
wrote a promise twice or released it twice changes nothing (HAMi #1966, volcano #4809).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from testbed.stack.model import Card
from testbed.stack.placement.effective import Charge
from testbed.stack.placement.nodes import Nodes

if TYPE_CHECKING:
    from testbed.stack.placement.outlook import Outlook
    from testbed.stack.placement.reasons import Refusals

#: Changes of rows that are remembered.
_CHANGES = 4096


@dataclass(frozen=True, slots=True)
class Promise:
    """What one pod holds on one node."""

    node: str
    charges: tuple[tuple[str, Charge], ...]


#: Uuid, slots, MiB and percent of a card.
_Taken = tuple[str, int, int, int]


# A hundred thousand promises are kept: as objects that the collector knows, with a map of
# charges each, they would need three times the memory.
class Single(msgspec.Struct, gc=False):
    """A promise as it is kept: one slot of one card, as nearly all are."""

    node: str
    uuid: str
    mem_mib: int
    core_pct: int

    def taken(self) -> Sequence[_Taken]:
        """Return what is taken of each card."""
        return ((self.uuid, 1, self.mem_mib, self.core_pct),)


class Several(msgspec.Struct, gc=False):
    """A promise as it is kept, of any cards: the four of ``taken`` one after another."""

    node: str
    flat: tuple[Any, ...]

    def taken(self) -> Sequence[_Taken]:
        """Return what is taken of each card."""
        flat = self.flat
        return list(zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True))


Held = Single | Several


def flattened(charges: Mapping[str, Charge]) -> tuple[Any, ...]:
    """Return charges as ``Several`` keeps them."""
    flat: list[Any] = []
    for uuid, charge in charges.items():
        flat += (uuid, charge.slots, charge.mem_mib, charge.core_pct)
    return tuple(flat)


class Ledger(Nodes):
    """Cards, promises and free values. Not thread-safe: one event loop owns it."""

    def __init__(self, *, rows: int = 64, width: int = 8) -> None:
        super().__init__(rows=rows, width=width)
        self._promises: dict[str, Held] = {}
        self._by_node: dict[str, list[str]] = {}  # few pods: a set needs ten times as much
        self._books = True
        self._changes: list[int] = []  # the rows of the last changes
        self._forgotten = 0  # how many changes there were before those
        #: What ``outlook`` keeps with the ledger, by the identity of a request.
        self.outlooks: dict[int, Outlook] = {}
        #: And what ``reasons`` keeps.
        self.refusals: dict[int, Refusals] = {}

    def set_node(
        self,
        name: str,
        cards: Sequence[Card],
        cordoned: Iterable[str] = (),
        links: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Do what ``Nodes.set_node`` does; what is promised on the node stays taken."""
        super().set_node(name, cards, cordoned, links)
        row = self.row_of(name)
        if row is None:
            return
        if self._books:
            self._recount(row)
        else:
            self.slots_free[row], self.mem_free[row] = self.slots_total[row], self.mem_total[row]
            self.core_free[row] = self.core_total[row]

    # --- promises --------------------------------------------------------

    def promise(self, uid: str, node: str, charges: Mapping[str, Charge]) -> None:
        """Charge a pod's shares to a node's cards, in place of what it held before."""
        self.hold(uid, Several(node, flattened(charges)))

    def hold(self, uid: str, held: Held) -> None:
        """Do what ``promise`` does, for charges in the form in which they are kept."""
        if uid in self._promises:
            self.release(uid)
        self._promises[uid] = held
        pods = self._by_node.get(held.node)
        if pods is None:
            pods = self._by_node[held.node] = []
        pods.append(uid)
        if self._books:
            self._book(held, +1)

    def keep(self, uid: str, held: Held) -> None:
        """Keep a promise in another form, which charges the same to the same cards."""
        self._promises[uid] = held

    def release(self, uid: str) -> bool:
        """Give back what a pod holds; False if it holds nothing."""
        held = self._promises.pop(uid, None)
        if held is None:
            return False
        pods = self._by_node[held.node]
        pods.remove(uid)
        if not pods:
            del self._by_node[held.node]
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
                for uuid, *taken_of in self._promises[uid].taken():
                    for column in where_is.get(uuid, ()):
                        rows.append(row)
                        columns.append(column)
                        amounts.extend(taken_of)
        taken = np.array(amounts, np.int64).reshape(-1, 3)
        where = (np.array(rows, np.int64), np.array(columns, np.int64))
        for grid, part in ((self.slots_free, 0), (self.mem_free, 1), (self.core_free, 2)):
            np.subtract.at(grid, where, taken[:, part])
        np.add.at(self.used, where[0], taken)
        self._derive(slice(0, self.size))

    def promises_on(self, node: str) -> list[str]:
        """Return the uids of the pods that hold shares of a node."""
        return list(self._by_node.get(node, ()))

    def promised(self, uid: str) -> Promise | None:
        """Return what a pod holds; None if it holds nothing."""
        held = self._promises.get(uid)
        if held is None:
            return None
        return Promise(
            held.node,
            tuple(
                (uuid, Charge(slots=slots, mem_mib=mem, core_pct=core))
                for uuid, slots, mem, core in held.taken()
            ),
        )

    def held(self, uid: str) -> Held | None:
        """Return what a pod holds, as it is kept; None if it holds nothing."""
        return self._promises.get(uid)

    def all_held(self) -> Mapping[str, Held]:
        """Return every promise, as it is kept, by its name."""
        return self._promises

    def unknown_cards(self, uid: str) -> tuple[str, ...]:
        """Return the uuids of a promise that its node has not registered."""
        held = self._promises.get(uid)
        if held is None:
            return ()
        known = {card.uuid for card in self.cards_of(held.node)}
        return tuple(sorted({uuid for uuid, *_ in held.taken()} - known))

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

    # --- changes ---------------------------------------------------------

    @property
    def stamp(self) -> int:
        """A number that grows with each change."""
        return self._forgotten + len(self._changes)

    def changed_since(self, stamp: int) -> set[int] | None:
        """Return the rows on which something else is free than at a stamp; None if that is
        not known any more, or if nodes came, went or changed."""
        at = stamp - self._forgotten
        return set(self._changes[at:]) if at >= 0 else None

    def _renew(self) -> None:
        super()._renew()
        self._forgotten += len(self._changes) + 1
        self._changes.clear()

    def _note(self, row: int) -> None:
        self._changes.append(row)
        if len(self._changes) > _CHANGES:
            self._forgotten += _CHANGES // 2
            del self._changes[: _CHANGES // 2]

    # --- books -----------------------------------------------------------

    def _recount(self, row: int) -> None:
        """Compute a row's free values from the promises on it."""
        self._reset(row)
        for uid in self._by_node.get(self._names[row], ()):
            self._book(self._promises[uid], +1)

    def _book(self, held: Held, sign: int) -> None:
        row = self._row.get(held.node)
        if row is None:
            return
        taken = [0, 0, 0]
        for uuid, slots, mem, core in held.taken():
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
