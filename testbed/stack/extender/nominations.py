"""What is kept for pods whose victims are ending, so that nobody else takes it.

Between an eviction and the end of the pod lie its grace period and a turn of the
scheduler's queue; without a promise the next best pod, mostly the victim's successor,
would get what was freed, and the eviction would begin anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from testbed.stack.model import PodKey, PodShares
from testbed.stack.placement.effective import Kind

#: Longest time that anything is kept: a grace period of the usual length, ten times.
LONGEST_S = 300.0
#: After its last victim is gone a pod comes back within its longest backoff.
FREED_S = 30.0


@dataclass(slots=True, kw_only=True)
class Nomination:
    """What is kept for one pod.

    Attributes:
        victims: Those that have not ended yet.
        freed: When the last of them ended.
    """

    pod: PodKey
    node: str
    shares: PodShares
    kinds: tuple[Kind, ...]
    priority: int
    victims: set[str]
    created: float
    freed: float | None = None

    @property
    def booked_as(self) -> str:
        """Its name in the ledger: the pod may hold a promise of its own beside it."""
        return f"nominated {self.pod.uid}"

    def over(self, now: float) -> bool:
        if self.freed is None and not self.victims:
            self.freed = now
        late = self.freed is not None and now - self.freed >= FREED_S
        return late or now - self.created >= LONGEST_S


class Nominations:
    """Nominations by uid."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Nomination] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[Nomination]:
        return iter(list(self._by_uid.values()))

    def get(self, uid: str) -> Nomination | None:
        return self._by_uid.get(uid)

    def add(self, nomination: Nomination) -> None:
        self._by_uid[nomination.pod.uid] = nomination

    def drop(self, uid: str) -> Nomination | None:
        return self._by_uid.pop(uid, None)

    def victim_gone(self, uid: str) -> list[PodKey]:
        """Note that a pod ended; return those that waited for it."""
        found = [n for n in self._by_uid.values() if uid in n.victims]
        for nomination in found:
            nomination.victims.discard(uid)
        return [nomination.pod for nomination in found]

    def over(self, now: float) -> list[Nomination]:
        """Return those whose time is up."""
        return [nomination for nomination in self._by_uid.values() if nomination.over(now)]

    def below(self, priority: int) -> list[Nomination]:
        """Return those of pods with a lower priority."""
        return [n for n in self._by_uid.values() if n.priority < priority]
