"""The samples of the last minutes, and the answer of ``/v1/cards``."""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.stack.devices import CardBook, CardReading, Device
from testbed.stack.model import PodKey
from testbed.stack.monitor.mirror import ContainerId
from testbed.stack.monitor.utilization import Window
from testbed.stack.monitor.whose import NOBODY, Owner

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process on one card; ``pid`` 0 with an empty owner stands for an idle card.

    Attributes:
        utilization_pct: By NVML's newest sample, None where there is none.
        busy_ns: Device time since the process began on an emulated card.
        swapped_bytes: What it holds outside an emulated card (managed memory).
    """

    uuid: str
    pid: int
    pod_uid: str
    container: str
    bytes: int
    utilization_pct: int | None = None
    busy_ns: int | None = None
    swapped_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """All cards at one time."""

    time: float
    samples: tuple[Sample, ...]

    def of(self, who: ContainerId, uuid: str) -> list[Sample]:
        """Return the samples of a container's processes on a card."""
        return [s for s in self.samples if s.uuid == uuid and (s.pod_uid, s.container) == who]


def samples_of(
    readings: Iterable[CardReading],
    owners: Mapping[int, Owner],
    *,
    windows: Mapping[str, Window] | None = None,
    books: Mapping[str, CardBook] | None = None,
) -> tuple[Sample, ...]:
    """Return the samples of one look at all cards.

    A card that could not be read has none: silence is not idleness.

    Args:
        readings: Of every card.
        owners: Of every pid.
        windows: NVML's present sample of each card, where there is one.
        books: Each emulated card's own accounting.
    """
    found = []
    for reading in readings:
        if reading.error:
            continue
        window = (windows or {}).get(reading.uuid)
        book = (books or {}).get(reading.uuid)
        for process in reading.processes:
            who = owners.get(process.pid, NOBODY)
            found.append(
                Sample(
                    uuid=reading.uuid,
                    pid=process.pid,
                    pod_uid=who.pod_uid,
                    container=who.container,
                    bytes=process.bytes,
                    # NVML names the busy alone: who is not in its sample was idle.
                    utilization_pct=window.sm_pct.get(process.pid, 0) if window else None,
                    busy_ns=book.busy_ns.get(process.pid) if book else None,
                    swapped_bytes=book.swapped_bytes.get(process.pid) if book else None,
                )
            )
        if not reading.processes:
            found.append(Sample(uuid=reading.uuid, pid=0, pod_uid="", container="", bytes=0))
    return tuple(found)


#: Further than this the node's clock does not wander by itself: somebody has set it. Who was
#: kept from running for a good part of it between two looks at clocks cannot tell.
_JUMP_S, _LOOK_S = 0.25, 0.05


class Ring:
    """The ticks of the last ``keep_s`` seconds.

    A tick's time is taken as it is stored, under the lock that also gives ``now``: who
    passes an answer's ``now`` on as ``since`` misses nothing and gets nothing twice. Times
    go on as the steady clock does; when the node's clock is set, they begin anew with it,
    and what was before is forgotten: no share is reckoned over a span that never was.
    """

    def __init__(
        self,
        *,
        keep_s: float,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_s = keep_s
        self._clock, self._steady = clock, steady
        self._ahead = clock() - steady()
        self._lock = threading.Lock()
        self._ticks: list[Tick] = []
        self._latest = 0.0

    def add(self, samples: tuple[Sample, ...]) -> None:
        with self._lock:
            tick = Tick(time=self._forward(), samples=samples)
            self._ticks.append(tick)
            first = bisect.bisect_left(
                self._ticks, tick.time - self._keep_s, key=lambda old: old.time
            )
            # Trimmed in strides, since each cut moves the rest.
            if first > 100:
                del self._ticks[:first]

    def since(self, moment: float) -> tuple[float, tuple[Tick, ...]]:
        """Return (now, the ticks after a moment)."""
        with self._lock:
            now = self._forward()
            start = bisect.bisect_right(self._ticks, moment, key=lambda tick: tick.time)
            return now, tuple(self._ticks[start:])

    def last(self) -> Tick | None:
        with self._lock:
            return self._ticks[-1] if self._ticks else None

    def _forward(self) -> float:
        """Return a time later than any given before, unless the clock was set back."""
        before, wall, after = self._steady(), self._clock(), self._steady()
        off = wall - (after + self._ahead)
        if abs(off) > _JUMP_S and after - before < _LOOK_S:
            _log.warning("the node's clock was set by %+.3f s: samples begin anew", off)
            self._ahead += off
            self._ticks.clear()
            self._latest = float("-inf")
        self._latest = max(after + self._ahead, self._latest + 1e-6)
        return self._latest


def answer(
    *,
    node: str,
    source: str,
    devices: Sequence[Device],
    readings: Mapping[str, CardReading],
    books: Mapping[str, CardBook],
    process_samples: Mapping[str, bool],
    now: float,
    ticks: Iterable[Tick],
    key: Callable[[str], PodKey | None],
) -> dict[str, object]:
    """Return the document of ``/v1/cards``.

    Args:
        node: This one.
        source: ``emulated`` or ``nvml``.
        devices: The node's cards.
        readings: The newest of each card, by uuid.
        books: Each emulated card's own accounting, by uuid.
        process_samples: Whether NVML tells which processes keep a card busy, by uuid.
        now: What the caller passes on as ``since``.
        ticks: The samples to show.
        key: Names a pod by its uid.
    """
    names: dict[str, tuple[str, str]] = {}

    def named(uid: str) -> tuple[str, str]:
        if uid not in names:
            found = key(uid)
            names[uid] = (found.namespace, found.name) if found else ("", "")
        return names[uid]

    samples = []
    for tick in ticks:
        for sample in tick.samples:
            namespace, pod = named(sample.pod_uid)
            samples.append(
                {
                    "time": tick.time,
                    "uuid": sample.uuid,
                    "pid": sample.pid,
                    "pod_uid": sample.pod_uid,
                    "namespace": namespace,
                    "pod": pod,
                    "container": sample.container,
                    "bytes": sample.bytes,
                    "utilization_pct": sample.utilization_pct,
                    "busy_ns": sample.busy_ns,
                    "swapped_bytes": sample.swapped_bytes,
                }
            )
    cards = [
        _card(device, readings.get(device.uuid), books.get(device.uuid), process_samples)
        for device in devices
    ]
    return {"node": node, "now": now, "source": source, "cards": cards, "samples": samples}


def _card(
    device: Device,
    reading: CardReading | None,
    book: CardBook | None,
    process_samples: Mapping[str, bool],
) -> dict[str, object]:
    return {
        "uuid": device.uuid,
        "name": device.name,
        "index": device.index,
        "memory_bytes": device.memory_bytes,
        "used_bytes": reading.used_bytes if reading and not reading.error else None,
        "utilization_pct": reading.utilization_pct if reading else None,
        "process_samples": process_samples.get(device.uuid, False),
        "clock": book.clock if book else None,
        "lapped": book.lapped if book else None,
        **({"budget_hits": book.budget_hits} if book else {}),
        **({"error": reading.error} if reading and reading.error else {}),
    }
