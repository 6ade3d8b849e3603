"""Promises to pods that are not bound yet; they live in this process only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from testbed.stack.model import PodKey, PodShares
from testbed.stack.placement.effective import Kind

#: How long a pod that is back in the scheduler's queue keeps its reservation.
QUEUED_S = 60.0
#: How long any pod keeps it: one may wait in Permit for its gang.
LONGEST_S = 900.0


class Stage(StrEnum):
    RESERVED = "reserved"
    WAITING = "waiting"  # in bind, for its node's turn
    BINDING = "binding"  # the Binding is out: it may take effect at any moment


@dataclass(slots=True, kw_only=True)
class Reservation:
    """A promise, from filter until its pod is bound or gives up.

    Attributes:
        created: By the clock that expiry uses.
        created_unix: For the annotation ``hami.io/vgpu-time``.
        queued_since: When the scheduler was first seen to have put the pod back.
        unanswered: A Binding got no answer, and may still arrive: until it cannot any more
            (an API server gives a call up after 60 s) nobody else gets what was promised,
            and the pod nothing else.
    """

    pod: PodKey
    node: str
    shares: PodShares
    kinds: tuple[Kind, ...]
    created: float
    created_unix: int
    stage: Stage = Stage.RESERVED
    queued_since: float | None = None
    priority: int = 0
    unanswered: bool = False

    def leave_open(self, now: float) -> None:
        """Keep the promise for the pod's next attempt; a Binding of it got no answer."""
        self.stage = Stage.RESERVED
        self.unanswered = True
        self.queued_since = now

    def over(self, now: float) -> bool:
        """Whether its time is up; never while bind works on it."""
        if self.stage is not Stage.RESERVED:
            return False
        if now - self.created >= LONGEST_S:
            return True
        return self.queued_since is not None and now - self.queued_since >= QUEUED_S


class Reservations:
    """Reservations by uid."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def get(self, uid: str) -> Reservation | None:
        return self._by_uid.get(uid)

    def add(self, reservation: Reservation) -> None:
        self._by_uid[reservation.pod.uid] = reservation

    def drop(self, uid: str) -> Reservation | None:
        return self._by_uid.pop(uid, None)

    def queued(self, uid: str, now: float) -> None:
        """Note that the scheduler has the pod back in its queue."""
        reservation = self._by_uid.get(uid)
        if reservation is not None and reservation.queued_since is None:
            reservation.queued_since = now
