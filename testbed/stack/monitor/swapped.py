"""What containers hold outside their cards: memory scaling above 1, and managed memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from testbed.stack.monitor.mirror import ContainerId
from testbed.stack.monitor.regions import ContainerRegion, RegionProblem
from testbed.stack.monitor.samples import Tick

#: What the library counts and what the card counts are not read at the same moment, so
#: the least of the library's last looks is compared with the card's most of this time.
_LOOKS = 2
_CARD_S = 3.0


class SwapBook:
    """What the libraries of containers with scaled memory counted at the last looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[ContainerId, deque[tuple[int, ...]]] = {}

    def look(self, regions: Mapping[ContainerId, ContainerRegion | RegionProblem]) -> None:
        """Take one look at the containers with scaled memory; others are forgotten."""
        with self._lock:
            before, self._seen = self._seen, {}
            for who, region in regions.items():
                if isinstance(region, ContainerRegion):
                    looks = before.get(who, deque(maxlen=_LOOKS))
                    looks.append(tuple(device.used_bytes for device in region.devices))
                    self._seen[who] = looks

    def counted(self, who: ContainerId, number: int) -> int | None:
        """Return the least that the library counted, None before it was looked at twice."""
        with self._lock:
            looks = list(self._seen.get(who, ()))
        if len(looks) < _LOOKS or any(number >= len(look) for look in looks):
            return None
        return min(look[number] for look in looks)


def swapped_bytes(
    ticks: Sequence[Tick], who: ContainerId, uuid: str, counted: int | None = None
) -> int | None:
    """Return what a container holds outside a card, bytes, None where nobody knows.

    An emulated card tells it. NVML does not: where memory is scaled, it is what the library
    counts and the card does not. Pure.

    Args:
        ticks: The card's samples, in order of time.
        who: The container.
        uuid: The card.
        counted: What the container's library counts, where its memory is scaled.
    """
    if not ticks:
        return None
    last = ticks[-1].of(who, uuid)
    told = [sample.swapped_bytes for sample in last if sample.swapped_bytes is not None]
    known = [sum(told)] if told else []
    if counted is not None:
        recent = [tick for tick in ticks if ticks[-1].time - tick.time <= _CARD_S]
        held = max(sum(sample.bytes for sample in tick.of(who, uuid)) for tick in recent)
        known.append(max(0, counted - held))
    return max(known, default=None)
