"""Pods that fitted nowhere a moment ago, and may fit now.

kube-scheduler hears of a pod's end when we do, and asks again at once. Where it is the
faster one it gets a refusal from books that are a moment old, and sleeps until some
other event comes by (five minutes at most). So whatever makes room wakes the pods that
were refused shortly before: an update of a waiting pod, its annotations too, makes
kube-scheduler try it again (1.37, framework.PodSchedulingPropertiesChange).
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.stack.model import PodKey

#: Longest time by which our watch may lag behind the scheduler's.
WINDOW_S = 5.0
#: Pods woken at one time; the others fitted before them or wait for the next event.
MOST = 32


class Waiting:
    """Remembers refusals for a short while, and tells when room was made."""

    def __init__(self) -> None:
        self._refused: dict[str, tuple[PodKey, float]] = {}
        self._listen: Callable[[], None] | None = None

    def listen(self, room: Callable[[], None]) -> None:
        """Call a function whenever room was made while a refusal is fresh."""
        self._listen = room

    def refused(self, pod: PodKey, now: float) -> None:
        """Note that a pod was just told that it fits nowhere."""
        if len(self._refused) >= 4 * MOST:
            self._prune(now)
        self._refused[pod.uid] = (pod, now)

    def forget(self, uid: str) -> None:
        """Note that a pod was placed, or is gone."""
        self._refused.pop(uid, None)

    def room_made(self) -> None:
        """Note that a promise ended, or that a node takes pods (again)."""
        if self._refused and self._listen is not None:
            self._listen()

    def take(self, now: float) -> list[PodKey]:
        """Return the pods to wake, the longest refused first, and forget them."""
        self._prune(now)
        pods = sorted(self._refused.values(), key=lambda entry: entry[1])[:MOST]
        for pod, _ in pods:
            del self._refused[pod.uid]
        return [pod for pod, _ in pods]

    def _prune(self, now: float) -> None:
        self._refused = {
            uid: entry for uid, entry in self._refused.items() if now - entry[1] <= WINDOW_S
        }
