"""The regions' counters of the last seconds, so that rates can be told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.native.region_watch import Counters
from testbed.stack.monitor.mirror import ContainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one device's counters did in a span; a container's first look has no rates.

    Attributes:
        launches_per_s: Kernels, graphs, large copies and fills.
        waited: Launches held back at a time, on the average: 0.5 is one thread that
            waits half of the time, 2 are two that do nothing else.
        waited_queue: Of it, since enough device time was in flight.
        waited_priority: Of it, since a pod of higher priority had work.
        denied: Allocations that the limit refused.
    """

    launches_per_s: float
    waited: float
    waited_queue: float
    waited_priority: float
    denied: int


class CounterBook:
    """Counters by container, as they were looked at."""

    def __init__(self, *, keep_s: float) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._lock = threading.Lock()
        self._seen: dict[ContainerId, deque[tuple[int, Counters]]] = {}

    def add(self, now_ns: int, found: Mapping[ContainerId, Counters]) -> None:
        """Take one look at all containers; those that are not in it are forgotten."""
        with self._lock:
            for who in self._seen.keys() - found.keys():
                del self._seen[who]
            for who, counters in found.items():
                seen = self._seen.setdefault(who, deque())
                if seen and _backwards(seen[-1][1], counters):
                    seen.clear()
                seen.append((now_ns, counters))
                while now_ns - seen[0][0] > self._keep_ns:
                    seen.popleft()

    def last(self, who: ContainerId) -> Counters | None:
        with self._lock:
            seen = self._seen.get(who)
            return seen[-1][1] if seen else None

    def rates(self, who: ContainerId, device: int, span_s: float) -> Rates | None:
        """Return a device's rates over about a span, None before there are two looks."""
        with self._lock:
            seen = list(self._seen.get(who, ()))
        if len(seen) < 2:
            return None
        now_ns, now = seen[-1]
        then_ns, then = next(
            (entry for entry in seen if now_ns - entry[0] <= span_s * 1e9), seen[-2]
        )
        if then_ns == now_ns:
            then_ns, then = seen[-2]
        if device >= len(now.launches) or device >= len(then.launches):
            return None
        passed_ns = now_ns - then_ns

        def grown(name: str) -> int:
            return max(0, int(getattr(now, name)[device] - getattr(then, name)[device]))

        return Rates(
            launches_per_s=grown("launches") / passed_ns * 1e9,
            waited=grown("waited_ns") / passed_ns,
            waited_queue=grown("waited_queue_ns") / passed_ns,
            waited_priority=grown("waited_priority_ns") / passed_ns,
            denied=grown("denied"),
        )


def _backwards(before: Counters, after: Counters) -> bool:
    """Whether a region was made anew meanwhile: its counters begin at zero again."""
    if len(before.launches) != len(after.launches):
        return True
    return any(new < old for old, new in zip(before.launches, after.launches, strict=True))
