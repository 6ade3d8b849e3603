"""Pods that fitted nowhere: what they asked, why, and when they may fit.

kube-scheduler hears of a pod's end when we do, and asks again at once. Where it is the
faster one it gets a refusal from books that are a moment old, and sleeps until some
other event comes by (five minutes at most). So whatever makes room wakes the pods that
were refused shortly before: an update of a waiting pod, its annotations too, makes
kube-scheduler try it again (1.37, framework.PodSchedulingPropertiesChange).

The last refusal of each pod is kept as long as it waits, for ``/debug/waiting``: events
expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.stack.model import PodKey
from testbed.stack.placement.request import PodRequest

#: Longest time by which our watch may lag behind the scheduler's.
WINDOW_S = 5.0
#: Pods woken at one time; the others fitted before them or wait for the next event.
MOST = 32
#: Refusals that are kept; beyond it the one that was refused longest ago is forgotten.
KEPT = 10_000
#: Offers whose names are kept with the refusal.
NAMED = 64


@dataclass(slots=True, kw_only=True)
class Refusal:
    """A pod that was refused and still waits.

    Attributes:
        request: What it asked for at the last attempt.
        counts: How many nodes gave each reason then.
        offered: How many nodes the scheduler offered then.
        nodes: Their names, where they are few (a large cluster's would fill the memory).
        first, last: When it was refused, by the extender's clock.
        attempts: How often.
    """

    pod: PodKey
    request: PodRequest
    counts: dict[str, int] = field(default_factory=dict)
    offered: int = 0
    nodes: tuple[str, ...] = ()
    first: float
    last: float
    attempts: int = 1


class Waiting:
    """Remembers refusals, and tells when room was made."""

    def __init__(self) -> None:
        self._fresh: dict[str, tuple[PodKey, float]] = {}
        self._kept: dict[str, Refusal] = {}
        self._listen: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Refusal]:
        return iter(list(self._kept.values()))

    def get(self, uid: str) -> Refusal | None:
        return self._kept.get(uid)

    def listen(self, room: Callable[[], None]) -> None:
        """Call a function whenever room was made while a refusal is fresh."""
        self._listen = room

    def refused(
        self,
        pod: PodKey,
        now: float,
        request: PodRequest | None = None,
        counts: Mapping[str, int] | None = None,
        nodes: Sequence[str] = (),
    ) -> None:
        """Note that a pod was just told that it fits nowhere.

        Args:
            pod: Which one.
            now: The time.
            request: What it asked for; without it only the wake-up is noted.
            counts: How many nodes gave each reason.
            nodes: Which ones the scheduler offered.
        """
        if len(self._fresh) >= 4 * MOST:
            self._prune(now)
        self._fresh[pod.uid] = (pod, now)
        if request is None:
            return
        before = self._kept.pop(pod.uid, None)
        self._kept[pod.uid] = Refusal(
            pod=pod,
            request=request,
            counts=dict(counts or {}),
            offered=len(nodes),
            nodes=tuple(nodes) if len(nodes) <= NAMED else (),
            first=now if before is None else before.first,
            last=now,
            attempts=1 if before is None else before.attempts + 1,
        )
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def forget(self, uid: str) -> None:
        """Note that a pod was placed, or is gone."""
        self._fresh.pop(uid, None)
        self._kept.pop(uid, None)

    def room_made(self) -> None:
        """Note that a promise ended, or that a node takes pods (again)."""
        if self._fresh and self._listen is not None:
            self._listen()

    def take(self, now: float) -> list[PodKey]:
        """Return the pods to wake, the longest refused first, and forget to wake them."""
        self._prune(now)
        pods = sorted(self._fresh.values(), key=lambda entry: entry[1])[:MOST]
        for pod, _ in pods:
            del self._fresh[pod.uid]
        return [pod for pod, _ in pods]

    def _prune(self, now: float) -> None:
        self._fresh = {
            uid: entry for uid, entry in self._fresh.items() if now - entry[1] <= WINDOW_S
        }
