"""Pods that fitted nowhere: what they asked, why, and when they may fit.

kube-scheduler hears of a pod's end when we do, and asks again at once. Where it is the
faster one it gets a refusal from books that are a moment old, and sleeps until some
other event comes by (five minutes at most). So whatever makes room wakes the pods that
were refused shortly before: an update of a waiting pod, its annotations too, makes
kube-scheduler try it again (1.37, framework.PodSchedulingPropertiesChange).

Other room kube-scheduler never hears of: a quota was raised, or a promise expired that
was ours alone. Then all pods that wait are looked at, some at a time, and those that fit
now are woken, however long ago they were refused. And with a process of ours end its
promises to pending pods, and what it knew of those that wait: whoever comes after it wakes
the pods that it finds asleep.

The last refusal of each pod is kept as long as it waits, for ``/debug/waiting``: events
expire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.stack.model import PodKey
from testbed.stack.placement.request import PodRequest

#: Longest time by which our watch may lag behind the scheduler's.
WINDOW_S = 5.0
#: Pods woken at one time; the others fitted before them or wait for the next event.
MOST = 32
#: Waiting pods that are looked at, one time, after room of which the scheduler knows nothing.
LOOKED_AT = 64
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
        self._fresh: dict[str, tuple[PodKey, float]] = {}  # refused last comes last
        self._kept: dict[str, Refusal] = {}
        self._to_look_at: deque[str] = deque()
        self._asleep: dict[str, PodKey] = {}  # refused by a process before this one
        self._listen: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Refusal]:
        return iter(list(self._kept.values()))

    def get(self, uid: str) -> Refusal | None:
        return self._kept.get(uid)

    def uids(self) -> set[str]:
        """Return the pods that were refused and are not forgotten."""
        return {*self._kept, *self._fresh}

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
        self._prune(now)
        self._fresh.pop(pod.uid, None)
        self._asleep.pop(pod.uid, None)
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

    def found_asleep(self, pod: PodKey) -> None:
        """Note a pod that was refused before this process began."""
        self._asleep[pod.uid] = pod

    def forget(self, uid: str) -> None:
        """Note that a pod was placed, or is gone."""
        self._asleep.pop(uid, None)
        self._fresh.pop(uid, None)
        self._kept.pop(uid, None)

    def room_made(self, *, unheard: bool = False) -> None:
        """Note that a promise ended, or that a node takes pods (again).

        Args:
            unheard: kube-scheduler does not hear of it, so that no refusal is too old.
        """
        if unheard:
            self._to_look_at = deque(self._kept)
        if (self._fresh or self.more) and self._listen is not None:
            self._listen()

    def take(self, now: float, fits: Callable[[Refusal], bool] = lambda _: False) -> list[PodKey]:
        """Return the pods to wake, the longest refused first, and forget to wake them.

        Args:
            now: The time.
            fits: Whether a pod fits by the books as they are; asked after room that the
                scheduler does not hear of.
        """
        self._prune(now)
        pods = sorted(self._fresh.values(), key=lambda entry: entry[1])[:MOST]
        for pod, _ in pods:
            del self._fresh[pod.uid]
        found = [pod for pod, _ in pods]
        for _ in range(min(LOOKED_AT, len(self._to_look_at))):
            if len(found) >= MOST:
                break
            refusal = self._kept.get(self._to_look_at.popleft())
            if refusal is not None and refusal.pod not in found and fits(refusal):
                self._fresh.pop(refusal.pod.uid, None)
                found.append(refusal.pod)
        while self._asleep and len(found) < MOST:
            uid = next(iter(self._asleep))
            pod = self._asleep.pop(uid)
            if pod not in found:
                found.append(pod)
        return found

    @property
    def more(self) -> bool:
        """Whether ``take`` has not looked at all yet."""
        return bool(self._to_look_at or self._asleep)

    def _prune(self, now: float) -> None:
        while self._fresh:
            uid, (_, since) = next(iter(self._fresh.items()))
            if now - since <= WINDOW_S:
                return
            del self._fresh[uid]
