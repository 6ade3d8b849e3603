"""A container's share of a card's time over the last seconds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.stack.monitor.mirror import ContainerId
from testbed.stack.monitor.samples import Sample, Tick


def share_pct(ticks: Sequence[Tick], who: ContainerId, uuid: str) -> float | None:
    """Return the percentage of a card's time that a container got, None where unknown.

    The card's own accounting where it has one, else the mean of NVML's samples. The
    ticks in which the card was read span the time; a process that came or ended within
    it counts with what it used until then.

    Args:
        ticks: In order of time.
        who: The container.
        uuid: The card.
    """
    seen = [(tick.time, _of(tick, uuid)) for tick in ticks]
    seen = [(time, samples) for time, samples in seen if samples]
    if len(seen) < 2:
        return None
    span_s = seen[-1][0] - seen[0][0]
    own = [[s for s in samples if (s.pod_uid, s.container) == who] for _, samples in seen]
    if not any(own):
        return 0.0
    if any(s.busy_ns is not None for samples in own for s in samples):
        return min(100.0, _busy_ns(own) / (span_s * 1e9) * 100)
    if any(s.pid for _, samples in seen for s in samples if s.utilization_pct is None):
        return None
    # A tick's figure is of the time before it, so the first one's counts for nothing.
    steps = zip(seen[1:], seen, own[1:], strict=False)
    used = sum(
        (now[0] - before[0]) * sum(s.utilization_pct or 0 for s in samples)
        for now, before, samples in steps
    )
    return min(100.0, used / span_s)


def _of(tick: Tick, uuid: str) -> list[Sample]:
    return [sample for sample in tick.samples if sample.uuid == uuid]


def _busy_ns(own: Sequence[Sequence[Sample]]) -> int:
    """Return the device time used from the first tick to the last, all processes."""
    # Who is not there at first began later, with nothing used.
    first = {s.pid: s.busy_ns or 0 for s in own[0]}
    last: dict[int, int] = {}
    for samples in own:
        for sample in samples:
            if sample.busy_ns is None:
                continue
            before = last.get(sample.pid, 0)
            if sample.busy_ns < before:
                # The pid is another process's now; what the first one used stays.
                first[sample.pid] = first.get(sample.pid, 0) - before
            last[sample.pid] = sample.busy_ns
    return sum(last[pid] - first.get(pid, 0) for pid in last)
