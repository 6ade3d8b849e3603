"""Whose turn it is on each node: at most one pod is between Binding and Allocate.

kubelet's Allocate does not say for which pod it asks. So the extender sends the next
Binding of a node only when no other pod of it is ``allocating``, and the plugin can
tell the asking pod without a guess. Turns are first come, first served; they belong
to a uid, and nobody else's failure ends them (HAMi #810). No clock and no waiting in
here: ``wake`` tells whoever waits, and ``now`` is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: After this long without an outcome, or a served container, a turn is taken back.
TURN_S = 30.0


@dataclass(slots=True)
class Turn:
    """A pod that holds its node's turn.

    Attributes:
        left: What the plugin has not served yet, as the watch showed it last.
    """

    node: str
    uid: str
    since: float
    left: str = ""


class Turns:
    """The turns of all nodes."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, Turn]] = {}  # node -> uid -> turn
        self._waiting: dict[str, deque[str]] = {}
        self._node: dict[str, str] = {}  # uid, holding or waiting
        self._wake: Callable[[str], None] | None = None

    def listen(self, wake: Callable[[str], None]) -> None:
        """Tell ``wake`` of every uid whose wait is over: granted, or taken out."""
        self._wake = wake

    def ask(self, node: str, uid: str, now: float) -> bool:
        """Queue for a node's turn; True if it is held now (at once, or already)."""
        if self._node.get(uid) not in (None, node):
            self.end(uid, now)
        if uid in self._held.get(node, {}):
            return True
        queue = self._waiting.setdefault(node, deque())
        if uid not in queue:
            queue.append(uid)
            self._node[uid] = node
        return self._advance(node, now) == uid

    def hold(self, node: str, uid: str, now: float, left: str = "") -> None:
        """Record a pod that was found allocating, whoever bound it.

        A node can have several after a restart; then all must end before the next. Its time
        counts anew whenever a container was served: each may take the plugin long.
        """
        held = self._held.setdefault(node, {})
        turn = held.get(uid)
        if turn is not None:
            if turn.left and turn.left != left:
                turn.since = now
            turn.left = left
            return
        if uid in self._node:
            self.end(uid, now)
        self._held.setdefault(node, {})[uid] = Turn(node, uid, now, left)
        self._node[uid] = node

    def restart(self, uid: str, now: float) -> None:
        """Count the time of a turn anew, if it is still held: its Binding went out."""
        turn = self._held.get(self._node.get(uid, ""), {}).get(uid)
        if turn is not None:
            turn.since = now

    def end(self, uid: str, now: float) -> None:
        """End a pod's turn or its wait; does nothing for any other pod."""
        node = self._node.pop(uid, None)
        if node is None:
            return
        held = self._held.get(node, {})
        held.pop(uid, None)
        if not held:
            self._held.pop(node, None)
        queue = self._waiting.get(node)
        if queue is not None and uid in queue:
            queue.remove(uid)
            self._tell(uid)
        self._tell(self._advance(node, now))

    def expired(self, now: float) -> list[Turn]:
        """Return the turns that have lasted too long; they stay held until ``end``."""
        return [
            turn
            for held in self._held.values()
            for turn in held.values()
            if now - turn.since >= TURN_S
        ]

    def holders(self, node: str) -> list[str]:
        return sorted(self._held.get(node, {}))

    def waiting(self, node: str) -> list[str]:
        return list(self._waiting.get(node, ()))

    def nodes(self) -> list[str]:
        """Return the nodes with a holder or a queue."""
        return sorted({*self._held, *(node for node, queue in self._waiting.items() if queue)})

    def uids(self) -> list[str]:
        """Return the pods that hold a turn or wait for one."""
        return list(self._node)

    def _tell(self, uid: str | None) -> None:
        if uid is not None and self._wake is not None:
            self._wake(uid)

    def _advance(self, node: str, now: float) -> str | None:
        """Give a free turn to the first in the queue."""
        queue = self._waiting.get(node)
        if self._held.get(node) or not queue:
            if not queue:
                self._waiting.pop(node, None)
            return None
        uid = queue.popleft()
        self._held.setdefault(node, {})[uid] = Turn(node, uid, now)
        if not queue:
            del self._waiting[node]
        return uid
