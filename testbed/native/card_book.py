"""How an emulated card shares out its time: ``emu/book.c`` once more, for readers.

Whoever uses the card moves its book on; between two such moments a reader works out what
has happened since by the same rules. Tests hold the two to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How time is shared. Units: ns."""

    sharing: bool = False
    slice_ns: int = 2_000_000
    switch_ns: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch in which a slot had the device (time slices) or its share of it."""

    start_ns: int
    end_ns: int
    granted_ns: int
    slot: int


@dataclass(slots=True, kw_only=True)
class Book:
    """What the card did up to ``time_ns``; fields as in ``struct card_book``."""

    time_ns: int = 0
    open_ns: int = 0
    switched_ns: int = 0
    turn_end_ns: int = 0
    holder: int = 0
    working: int = 0
    sharing: frozenset[int] = frozenset()
    granted_ns: list[int] = field(default_factory=list)
    closed: list[Segment] = field(default_factory=list)

    def advance(self, ready: Sequence[int], rules: Rules, until: int, watched: int = -1) -> bool:
        """Move time on.

        Args:
            ready: Device time that each slot has asked for, on the scale of ``granted_ns``.
            rules: How time is shared.
            until: Time stops there; with processor sharing less than a nanosecond a slot
                before.
            watched: A slot: stop when it has had all that it asked for.

        Returns:
            Whether it stopped because of ``watched``.
        """
        self.granted_ns += [0] * (len(ready) - len(self.granted_ns))
        if rules.sharing:
            return self._share(ready, until, watched)
        return self._slice(ready, rules, until, watched)

    def _left(self, ready: Sequence[int], slot: int) -> int:
        return max(0, ready[slot] - self.granted_ns[slot])

    def _close(self, granted_ns: int, slot: int) -> None:
        self.closed.append(Segment(self.open_ns, self.time_ns, granted_ns, slot))

    def _slice(self, ready: Sequence[int], rules: Rules, until: int, watched: int) -> bool:
        while self.time_ns < until:
            slot = self.holder - 1
            left = self._left(ready, slot) if self.working else 0
            if left == 0:
                self._close_turn()
                following = self._next(ready)
                if following is None:
                    self.time_ns = until
                    break
                self._begin(following, rules)
                continue
            if self.time_ns < self.switched_ns:
                self.time_ns = min(until, self.switched_ns)
                continue
            end = min(until, self.turn_end_ns, self.time_ns + left)
            self.granted_ns[slot] += end - self.time_ns
            self.time_ns = end
            if slot == watched and self._left(ready, slot) == 0:
                return True
            if end == self.turn_end_ns:
                following = self._next(ready)
                if following is None or following == slot:
                    self.turn_end_ns += rules.slice_ns
                else:
                    self._close_turn()
                    self._begin(following, rules)
        return False

    def _close_turn(self) -> None:
        if self.working and self.time_ns > self.open_ns:
            self._close(self.time_ns - self.open_ns, self.holder - 1)
        self.working = 0

    def _next(self, ready: Sequence[int]) -> int | None:
        for step in range(len(ready)):
            slot = (self.holder + step) % len(ready)
            if self._left(ready, slot):
                return slot
        return None

    def _begin(self, slot: int, rules: Rules) -> None:
        changes = self.holder not in (0, slot + 1)
        self.switched_ns = self.time_ns + (rules.switch_ns if changes else 0)
        self.open_ns = self.switched_ns
        self.turn_end_ns = self.switched_ns + rules.slice_ns
        self.holder = slot + 1
        self.working = 1

    def _share(self, ready: Sequence[int], until: int, watched: int) -> bool:
        while self.time_ns < until:
            sharing = frozenset(i for i in range(len(ready)) if self._left(ready, i))
            if sharing != self.sharing:
                if self.time_ns > self.open_ns:
                    for slot in sorted(self.sharing):
                        share = (self.time_ns - self.open_ns) // len(self.sharing)
                        self._close(share, slot)
                self.sharing = sharing
                self.working = len(sharing)
                self.open_ns = self.time_ns
            if not sharing:
                self.time_ns = until
                return False
            rest = min(self._left(ready, slot) for slot in sharing)
            each = min((until - self.time_ns) // len(sharing), rest)
            if each == 0:
                return False
            for slot in sharing:
                self.granted_ns[slot] += each
            self.time_ns += each * len(sharing)
            if watched in sharing and self._left(ready, watched) == 0:
                return True
        return False
