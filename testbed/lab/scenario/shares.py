"""Shares of device time and rates of work over a window of time (pure).

Two independent observations of the same thing: what the card granted to a container's
processes, as the monitor sampled it, and how many steps a workload told that it did.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from testbed.lab.scenario.question import Sample, Trial
from testbed.lab.scenario.record import Check

#: Of a window, the least part that samples must span for a figure to count.
LEAST_SPAN = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of one card's time.

    Attributes:
        pct: Percent of the time from ``start`` to ``end``.
        start: Time of the first sample that was used, seconds since 1970.
        end: Time of the last one.
        measure: ``busy`` (device time that the card granted) or ``utilization`` (NVML's).
    """

    pct: float
    start: float
    end: float
    measure: str


def device_share(
    samples: Sequence[Sample],
    *,
    pod_uid: str,
    container: str,
    uuid: str,
    start: float,
    end: float,
) -> Share | None:
    """Return a container's share of a card between two times.

    From ``busy_ns`` where the card tells it: the sum over the container's processes of
    its growth between the first and the last sampling time inside the window, over the
    time between the two. Else the mean over sampling times of NVML's utilisation.

    Returns:
        None where the samples span less than ``LEAST_SPAN`` of the window, or hold no
        figure.
    """
    here = [s for s in samples if s.uuid == uuid]
    times = sorted({s.time for s in here if start <= s.time <= end})
    if len(times) < 2 or times[-1] - times[0] < LEAST_SPAN * (end - start):
        return None
    own = [s for s in here if s.pod_uid == pod_uid and s.container == container]
    if any(s.busy_ns is not None for s in own):
        granted = sum(_growth(own, pid, times[0], times[-1]) for pid in {s.pid for s in own})
        pct = granted / ((times[-1] - times[0]) * 1e9) * 100
        return Share(pct=pct, start=times[0], end=times[-1], measure="busy")
    if all(s.utilization_pct is None for s in own):
        return None
    inside = [s for s in own if times[0] <= s.time <= times[-1]]
    pct = sum(s.utilization_pct or 0.0 for s in inside) / len(times)
    return Share(pct=pct, start=times[0], end=times[-1], measure="utilization")


def pod_share(
    trial: Trial, pod: str, uuid: str, start: float, end: float, container: str = "main"
) -> Share | None:
    """Return ``device_share`` of one of a trial's pods."""
    return device_share(
        trial.samples,
        pod_uid=trial.pods[pod].uid,
        container=container,
        uuid=uuid,
        start=start,
        end=end,
    )


def judge_share(
    base: Check, share: Share | None, *, word: str, least: float | None, unknown: str
) -> Check:
    """Return the verdict on a share of the card.

    Args:
        base: The check, with what was asked for and the tolerance, percentage points.
        share: What the card granted, None where that is not known.
        word: What it is called, such as ``limit``.
        least: What it must reach but for the tolerance, percent; None: it is a ceiling.
        unknown: Why it is not known, where it is not.
    """
    if share is None:
        return msgspec.structs.replace(base, verdict="error", reason=unknown)
    assert base.tolerance is not None and isinstance(base.asked, float)
    reason = ""
    if share.pct > base.asked + base.tolerance:
        reason = f"more than its {word}"
    elif least is not None and share.pct < least - base.tolerance:
        reason = f"less than its {word}"
    return msgspec.structs.replace(
        base, verdict="fail" if reason else "pass", card=round(share.pct, 2), reason=reason
    )


def _growth(samples: Iterable[Sample], pid: int, start: float, end: float) -> int:
    """Return the device time that one process was granted between two sampling times.

    A counter that falls belongs to another process with the same number.
    """
    series = sorted((s.time, s.busy_ns) for s in samples if s.pid == pid and s.busy_ns is not None)
    grown, before = 0, 0
    for time, busy in series:
        if time > end:
            break
        if time > start:
            grown += busy - before if busy >= before else busy
        before = busy
    return grown


def step_rate(
    events: Iterable[Mapping[str, Any]], *, uuid: str, start: float, end: float
) -> float | None:
    """Return steps a second between two times, from a workload's running count.

    Between two tellings the count is taken to grow evenly.

    Returns:
        None where the tellings do not reach over ``LEAST_SPAN`` of the window.
    """
    told = sorted(
        (float(e["time"]), int(e["steps"]))
        for e in events
        if e["event"] == "steps" and e.get("uuid") == uuid
    )
    if not told:
        return None
    start, whole = max(start, told[0][0]), end - start
    end = min(end, told[-1][0])
    if end <= start or end - start < LEAST_SPAN * whole:
        return None
    return (_at(told, end) - _at(told, start)) / (end - start)


def _at(told: Sequence[tuple[float, int]], time: float) -> float:
    """Return the count at a time inside the tellings."""
    times = [each[0] for each in told]
    right = bisect_left(times, time)
    if right < len(told) and told[right][0] == time:
        return told[bisect_right(times, time) - 1][1]
    (t0, n0), (t1, n1) = told[right - 1], told[right]
    return n0 + (n1 - n0) * (time - t0) / (t1 - t0)


def water_fill(wanted: Sequence[float], capacity: float) -> tuple[float, ...]:
    """Return what each of several gets of a capacity that goes round in equal turns.

    Nobody gets more than he wants; what one leaves goes to the others evenly (max-min
    fairness; Bertsekas and Gallager, "Data Networks", 6.5.2). That is what time slices
    in turn give to tenants that keep work queued.

    Args:
        wanted: The most that each takes, in the unit of ``capacity``.
        capacity: What there is.
    """
    given = [0.0] * len(wanted)
    left, open_ones = capacity, sorted(range(len(wanted)), key=lambda i: wanted[i])
    while open_ones:
        each = left / len(open_ones)
        first = open_ones.pop(0)
        given[first] = min(wanted[first], each)
        left -= given[first]
    return tuple(given)
