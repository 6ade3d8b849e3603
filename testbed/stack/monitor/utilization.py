"""From NVML's samples to windows: who used a card, in which interval. Pure.

NVML samples about six times a second and tells it a tenth of a second later. Each
window carries the interval that its figures are of, since the library compares them
with what it let through in that interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.stack.devices import UtilizationReading

MS = 1_000_000
#: NVML's period as documented (nvml.h: "up to 1/6 second", one second on old cards).
PERIOD_NS = 1_000_000_000 // 6
_SHORTEST_NS, _LONGEST_NS = 20 * MS, 1500 * MS
#: How long after its time a sample is usually told.
_LAG_NS = 100 * MS
#: Until a sample that is due comes.
_RETRY_NS = 15 * MS
#: A sample may appear this much earlier than the last one, so the phase is followed.
_EARLY_NS = 4 * MS
#: Windows older than this say nothing of the present.
FRESH_NS = 2_000 * MS
_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One sample of one card.

    Attributes:
        stamp_ns: CLOCK_MONOTONIC, end of the interval.
        interval_ns: Its length.
        sm_pct: Percent of the interval by pid; who is not in it was idle.
        card_pct: The whole card, None where NVML does not tell.
    """

    stamp_ns: int
    interval_ns: int
    sm_pct: Mapping[int, int]
    card_pct: int | None


@dataclass(slots=True, kw_only=True)
class Sampler:
    """One card's samples, in order; says when to ask again."""

    period_ns: int = PERIOD_NS
    since_us: int = 0
    due_ns: int = 0
    #: False while the card is busy and no process is told to be the cause.
    process_samples: bool = True
    _last_ns: int = 0
    _told_ns: int = 0
    _silent_since_ns: int = 0
    _gaps: list[int] = field(default_factory=list)

    def take(self, reading: UtilizationReading, *, now_ns: int, real_ns: int) -> Window | None:
        """Return the window that a reading completes, None where nothing is new.

        Args:
            reading: NVML's answer for everything after ``since_us``.
            now_ns: CLOCK_MONOTONIC when it was given.
            real_ns: The node's wall clock at the same moment.
        """
        self.due_ns = now_ns + _RETRY_NS
        if reading.error or not reading.offered:
            self.process_samples = False
            self.due_ns = now_ns + self.period_ns
            return None
        if not self._told_ns:
            self._told_ns = now_ns
        newest = max((sample.stamp_us for sample in reading.processes), default=0)
        if newest:
            return self._busy(reading, newest, now_ns=now_ns, real_ns=real_ns)
        return self._idle(reading, now_ns=now_ns, real_ns=real_ns)

    def _busy(
        self, reading: UtilizationReading, newest: int, *, now_ns: int, real_ns: int
    ) -> Window | None:
        self.since_us = max(self.since_us, newest)
        self._silent_since_ns = 0
        if any(not 0 <= sample.sm_pct <= _PERCENT for sample in reading.processes):
            # Seen on hardware (nvtop #110): a figure that cannot be is no figure.
            return None
        self.process_samples = True
        used: dict[int, int] = {}
        for sample in sorted(reading.processes, key=lambda sample: sample.stamp_us):
            used[sample.pid] = sample.sm_pct
        stamp = monotonic_ns(newest, now_ns=now_ns, real_ns=real_ns)
        return self._window(stamp, used, reading.card_pct, now_ns=now_ns)

    def _idle(self, reading: UtilizationReading, *, now_ns: int, real_ns: int) -> Window | None:
        """Nobody was busy: NVML tells that by silence, so the card's own sample dates it."""
        if reading.card_stamp_us is not None:
            if reading.card_pct:
                # Processes' samples may come a little later than the card's.
                self._silent_since_ns = self._silent_since_ns or now_ns
                if now_ns - self._silent_since_ns > 2 * self.period_ns:
                    self.process_samples = False
                return None
            self._silent_since_ns = 0
            self.process_samples = True
            self.since_us = max(self.since_us, reading.card_stamp_us)
            stamp = monotonic_ns(reading.card_stamp_us, now_ns=now_ns, real_ns=real_ns)
            return self._window(stamp, {}, 0, now_ns=now_ns)
        if now_ns - self._told_ns < 2 * self.period_ns:
            return None
        # No samples of the card either: silence for two periods, less the usual lag.
        return self._window(now_ns - _LAG_NS, {}, None, now_ns=now_ns, learn=False)

    def _window(
        self,
        stamp_ns: int,
        used: Mapping[int, int],
        card_pct: int | None,
        *,
        now_ns: int,
        learn: bool = True,
    ) -> Window | None:
        gap = stamp_ns - self._last_ns
        if self._last_ns and gap <= 0:
            return None
        if learn and self._last_ns:
            self._learn(gap)
        known = self._last_ns and _SHORTEST_NS <= gap <= _LONGEST_NS
        self._last_ns, self._told_ns = stamp_ns, now_ns
        self.due_ns = now_ns + self.period_ns - _EARLY_NS
        return Window(
            stamp_ns=stamp_ns,
            interval_ns=gap if known else self.period_ns,
            sm_pct=used,
            card_pct=card_pct,
        )

    def _learn(self, gap_ns: int) -> None:
        """Follow the driver's period: the median of the last few gaps."""
        if _SHORTEST_NS <= gap_ns <= _LONGEST_NS:
            self._gaps = [*self._gaps[-8:], gap_ns]
            if len(self._gaps) >= 3:
                self.period_ns = sorted(self._gaps)[len(self._gaps) // 2]


def monotonic_ns(stamp_us: int, *, now_ns: int, real_ns: int) -> int:
    """Return a driver's stamp on CLOCK_MONOTONIC, never later than now.

    Drivers stamp with the wall clock; one that stamps with the monotonic one is told
    by which of the two it is nearer to.
    """
    stamp_ns = stamp_us * 1000
    if abs(stamp_ns - real_ns) < abs(stamp_ns - now_ns):
        stamp_ns += now_ns - real_ns
    return min(stamp_ns, now_ns)


def shares(window: Window, own: frozenset[int]) -> tuple[int, int]:
    """Return (own, others') use of a card in a window, per mille of its interval.

    Percents are rounded by process, so their sum may pass the whole a little.
    """
    mine = sum(pct for pid, pct in window.sm_pct.items() if pid in own)
    others = sum(pct for pid, pct in window.sm_pct.items() if pid not in own)
    return min(10 * mine, 1000), min(10 * others, 1000)
