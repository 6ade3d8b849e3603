"""From NVML's samples to windows: who used a card, in which interval. Pure.

NVML samples about six times a second and tells it a tenth of a second later. Each
window carries the interval that its figures are of, since the library compares them
with what it let through in that interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.stack.devices import ProcessSample, UtilizationReading

MS = 1_000_000
#: NVML's period as documented (nvml.h: "up to 1/6 second", one second on old cards).
PERIOD_NS = 1_000_000_000 // 6
_SHORTEST_NS, _LONGEST_NS = 20 * MS, 1500 * MS
#: So many gaps tell a driver's period.
_LEAST_GAPS = 3
#: How long after its time a sample is usually told.
_LAG_NS = 100 * MS
#: Until a sample that is due comes.
_RETRY_NS = 15 * MS
#: How much earlier than a period after the last sample was found the next one is asked
#: for: a little where it had been asked for in vain before, so it is there about now;
#: more where the first question found it, which may have been long after it came.
_EARLY_NS, _EARLIER_NS = 4 * MS, 16 * MS
#: Windows older than this say nothing of the present.
FRESH_NS = 2_000 * MS
_PERCENT = 100
#: Two samples in a row say more than one card can give: each had the whole for one process.
_MORE_THAN_A_CARD = 120
#: So often in a row, back and forth, is no handing over of the card.
_BACK_AND_FORTH = 3


@dataclass(slots=True)
class _Attribution:
    """Whether samples tell what each process used, or who was met (an H200 under driver 580
    gives each sample's whole card to one process: docs/hardware.md)."""

    whole: bool = False
    _turns: int = 0
    _last: tuple[int, int] | None = None  # pid, percent

    def take(self, samples: Iterable[ProcessSample]) -> None:
        by_stamp: dict[int, list[tuple[int, int]]] = {}
        for sample in samples:
            if sample.sm_pct > 0:
                by_stamp.setdefault(sample.stamp_us, []).append((sample.pid, sample.sm_pct))
        for _, busy in sorted(by_stamp.items()):
            if len(busy) > 1:
                self.whole, self._turns, self._last = False, 0, None
                continue
            pid, percent = busy[0]
            if self._last is not None and pid != self._last[0]:
                more = percent + self._last[1] > _MORE_THAN_A_CARD
                self._turns = self._turns + 1 if more else 0
                self.whole = self.whole or self._turns >= _BACK_AND_FORTH
            self._last = (pid, percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One sample of one card.

    Attributes:
        stamp_ns: CLOCK_MONOTONIC, end of the interval.
        interval_ns: Its length.
        sm_pct: Percent of the interval by pid; who is not in it was idle.
        card_pct: The whole card, None where NVML does not tell.
        by_process: False where NVML told of the card alone: then ``sm_pct`` is empty and
            only a card that one container has to itself can be accounted for.
    """

    stamp_ns: int
    interval_ns: int
    sm_pct: Mapping[int, int]
    card_pct: int | None
    by_process: bool = True


@dataclass(slots=True, kw_only=True)
class Sampler:
    """One card's samples, in order; says when to ask again."""

    period_ns: int = PERIOD_NS
    #: What has been seen of processes' samples, and of the card's.
    since_us: int = 0
    card_since_us: int = 0
    due_ns: int = 0
    #: False while the card is busy and no process is told to be the cause, or only one of them.
    process_samples: bool = True
    _attribution: _Attribution = field(default_factory=_Attribution)
    _in_vain: bool = False
    _last_ns: int = 0
    _told_ns: int = 0
    _missing_since_ns: int = 0
    _gaps: list[int] = field(default_factory=list)

    def take(self, reading: UtilizationReading, *, now_ns: int, real_ns: int) -> Window | None:
        """Return the window that a reading completes, None where nothing is new.

        Args:
            reading: NVML's answer for everything after ``since_us`` and ``card_since_us``.
            now_ns: CLOCK_MONOTONIC when it was given.
            real_ns: The node's wall clock at the same moment.
        """
        self.due_ns = now_ns + _RETRY_NS
        if reading.error:
            self.process_samples = False
            self.due_ns = now_ns + self.period_ns
            return None
        self._told_ns = self._told_ns or now_ns
        newest = max((sample.stamp_us for sample in reading.processes), default=0)
        if newest:
            return self._busy(reading, newest, now_ns=now_ns, real_ns=real_ns)
        if reading.card_stamp_us is not None:
            return self._by_card(reading, reading.card_stamp_us, now_ns=now_ns, real_ns=real_ns)
        if reading.offered and reading.card_pct == 0:
            return self._by_silence(now_ns)
        self._in_vain = True
        if reading.card_pct or not reading.offered:
            self._missing(reading, now_ns)
            if not self.process_samples:
                self.due_ns = now_ns + self.period_ns
        return None

    def _busy(
        self, reading: UtilizationReading, newest: int, *, now_ns: int, real_ns: int
    ) -> Window | None:
        self.since_us = max(self.since_us, newest)
        self.card_since_us = max(self.card_since_us, reading.card_stamp_us or 0)
        self._missing_since_ns = 0
        if any(not 0 <= sample.sm_pct <= _PERCENT for sample in reading.processes):
            # Seen on hardware (nvtop #110): a figure that cannot be is no figure.
            return None
        self._attribution.take(reading.processes)
        self.process_samples = not self._attribution.whole
        used: dict[int, int] = {}
        for sample in sorted(reading.processes, key=lambda sample: sample.stamp_us):
            used[sample.pid] = sample.sm_pct
        stamp = monotonic_ns(newest, now_ns=now_ns, real_ns=real_ns)
        if not self.process_samples:
            return self._window(stamp, {}, reading.card_pct, now_ns=now_ns, by_process=False)
        return self._window(stamp, used, reading.card_pct, now_ns=now_ns)

    def _by_card(
        self, reading: UtilizationReading, card_stamp: int, *, now_ns: int, real_ns: int
    ) -> Window | None:
        """Nobody is said to have been busy; the card's own sample dates that, or belies it."""
        if reading.card_pct:
            self._missing(reading, now_ns)
            if self.process_samples:
                return None  # they may come a little later than the card's
        else:
            self._missing_since_ns = 0
        self.card_since_us = max(self.card_since_us, card_stamp)
        stamp = monotonic_ns(card_stamp, now_ns=now_ns, real_ns=real_ns)
        known = self.process_samples or not reading.card_pct
        return self._window(stamp, {}, reading.card_pct, now_ns=now_ns, by_process=known)

    def _by_silence(self, now_ns: int) -> Window | None:
        """No samples of the card either, and it is idle: two periods' silence, less the lag."""
        self._missing_since_ns = 0
        if now_ns - self._told_ns < 2 * self.period_ns:
            return None
        return self._window(now_ns - _LAG_NS, {}, 0, now_ns=now_ns, learn=False)

    def _missing(self, reading: UtilizationReading, now_ns: int) -> None:
        """Somebody keeps the card busy and NVML does not say who."""
        self._missing_since_ns = self._missing_since_ns or now_ns
        if not reading.offered or now_ns - self._missing_since_ns > 2 * self.period_ns:
            self.process_samples = False

    def _window(
        self,
        stamp_ns: int,
        used: Mapping[int, int],
        card_pct: int | None,
        *,
        now_ns: int,
        by_process: bool = True,
        learn: bool = True,
    ) -> Window | None:
        gap = stamp_ns - self._last_ns
        if self._last_ns and gap <= 0:
            return None
        # Whoever asks late is told the newest sample alone, which is of one period: taken for the
        # whole gap it would charge a process for all of it what it had at one end.
        several = not self._in_vain and self._learned and gap > self.period_ns * 3 // 2
        if learn and self._last_ns and not several:
            self._learn(gap)
        known = self._last_ns and not several and _SHORTEST_NS <= gap <= _LONGEST_NS
        self._last_ns, self._told_ns = stamp_ns, now_ns
        early_ns = _EARLY_NS if self._in_vain else _EARLIER_NS
        self.due_ns = now_ns + self.period_ns - early_ns
        self._in_vain = False
        return Window(
            stamp_ns=stamp_ns,
            interval_ns=gap if known else self.period_ns,
            sm_pct=used,
            card_pct=card_pct,
            by_process=by_process,
        )

    def _learn(self, gap_ns: int) -> None:
        """Follow the driver's period: the least of the last few gaps.

        Samples that were missed make gaps longer, never shorter; and whoever takes two periods
        for one misses every second sample from then on.
        """
        if _SHORTEST_NS <= gap_ns <= _LONGEST_NS:
            self._gaps = [*self._gaps[-8:], gap_ns]
            if self._learned:
                self.period_ns = min(self._gaps)

    @property
    def _learned(self) -> bool:
        return len(self._gaps) >= _LEAST_GAPS


def monotonic_ns(stamp_us: int, *, now_ns: int, real_ns: int) -> int:
    """Return a driver's stamp on CLOCK_MONOTONIC, never later than now.

    Drivers stamp with the wall clock; one that stamps with the monotonic one is told
    by which of the two it is nearer to.
    """
    stamp_ns = stamp_us * 1000
    if abs(stamp_ns - real_ns) < abs(stamp_ns - now_ns):
        stamp_ns += now_ns - real_ns
    return min(stamp_ns, now_ns)


def shares(
    window: Window, own: frozenset[int], others: frozenset[int] = frozenset()
) -> tuple[int, int] | None:
    """Return (own, others') use of a card in a window, per mille of its interval.

    Percents are rounded by process, so their sum may pass the whole a little. Where NVML
    told of the card alone, it is known only for a container that has no process on the
    card, or for one that has them all; else None.

    Args:
        window: The card's sample.
        own: The container's processes.
        others: All other processes on the card.
    """
    if not window.by_process:
        if window.card_pct is None or (own and others):
            return None
        whole = min(10 * window.card_pct, 1000)
        return (whole, 0) if own else (0, whole)
    mine = sum(pct for pid, pct in window.sm_pct.items() if pid in own)
    rest = sum(pct for pid, pct in window.sm_pct.items() if pid not in own)
    return min(10 * mine, 1000), min(10 * rest, 1000)
