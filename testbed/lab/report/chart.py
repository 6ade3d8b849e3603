"""What a case's pods did over time: the figures behind every plot, as plain values.

A question makes a ``Chart`` of its trials; it is stored beside the record, and
pictures for notebook and report are drawn from it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from testbed.errors import InputError
from testbed.lab.report.relation import Relation
from testbed.lab.scenario.question import Sample, Trial
from testbed.units import MIB

SCHEMA = "vgpu-testbed.dev/chart/v1"
#: Shares are drawn over this time, ending at each sample: long against the 2 ms
#: slices of the card, short against the phases of a trial.
SHARE_WINDOW_S = 1.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One series; the same label has the same colour in every panel.

    Attributes:
        label: Whose, such as ``a``.
        times: Seconds since the trial began, rising.
        values: In the panel's unit, one for each time; None where nothing is known.
    """

    label: str
    times: tuple[float, ...]
    values: tuple[float | None, ...]


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """A promised limit, drawn as a dashed line in the colour of its series.

    Attributes:
        label: The series that it belongs to.
        value: In the panel's unit.
        begin: Seconds since the trial began; None: from its start.
        end: Likewise; None: to its end.
    """

    label: str
    value: float
    begin: float | None = None
    end: float | None = None


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A named part of a trial, seconds since it began."""

    name: str
    begin: float
    end: float


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over time."""

    quantity: str  # a stable word: memory, compute
    title: str
    unit: str
    lines: tuple[Line, ...]
    caps: tuple[Cap, ...] = ()

    @property
    def top(self) -> float:
        """The largest value that is to be seen, 0 where there is none."""
        values = [v for line in self.lines for v in line.values if v is not None]
        return max([*values, *(cap.value for cap in self.caps)], default=0.0)


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of a case: the run with the limiter, or its control."""

    title: str
    control: bool
    seconds: float
    panels: tuple[Panel, ...]
    phases: tuple[Phase, ...] = ()


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A case's trials side by side, and below them what was asked against what was got."""

    sides: tuple[Side, ...]
    relations: tuple[Relation, ...] = ()
    schema: str = SCHEMA

    def labels(self) -> tuple[str, ...]:
        """Return the labels of all series in the order of their first appearance."""
        found = dict.fromkeys(
            line.label for side in self.sides for panel in side.panels for line in panel.lines
        )
        return tuple(found)

    def top(self, quantity: str) -> float:
        """Return the largest value of a quantity in all sides, for one scale."""
        panels = [p for side in self.sides for p in side.panels if p.quantity == quantity]
        return max((panel.top for panel in panels), default=0.0)


Key = Callable[[Sample], str]


def by_pod(trial: Trial) -> Key:
    """Return the key that gives each sample its pod's name; strangers have none."""
    names = {pod.uid: name for name, pod in trial.pods.items()}
    return lambda sample: names.get(sample.pod_uid, "")


def make_chart(
    trial: Trial,
    control: Trial | None,
    *,
    memory: Mapping[str, float] | None = None,
    compute: Mapping[str, float] | None = None,
    key: Callable[[Trial], Key] = by_pod,
) -> Chart:
    """Return the chart of a run and its control.

    Args:
        trial: The run with the limiter.
        control: The run without it, if there was one.
        memory: Label to memory cap, MiB, 0 for none; without it memory is not drawn.
        compute: Label to share of compute, percent, 0 for none; likewise.
        key: Gives each sample of a trial its series.
    """
    sides = []
    for one in (trial, control):
        if one is None:
            continue
        panels = []
        if memory is not None:
            panels.append(memory_panel(one, memory, key(one)))
        if compute is not None:
            panels.append(share_panel(one, compute, key(one)))
        sides.append(
            Side(
                title="control: no limiter" if one is control else "with the limiter",
                control=one is control,
                seconds=max(0.0, one.ended - one.started),
                panels=tuple(panels),
                phases=phases(one),
            )
        )
    return Chart(sides=tuple(sides))


def memory_panel(trial: Trial, caps: Mapping[str, float], key: Key) -> Panel:
    """Return what the card counted for each series of ``caps`` (MiB), in GiB."""
    sums: dict[str, dict[float, int]] = {label: {} for label in caps}
    times = sorted({sample.time for sample in trial.samples})
    for sample in trial.samples:
        found = sums.get(key(sample))
        if found is not None:
            found[sample.time] = found.get(sample.time, 0) + sample.bytes
    at = tuple(round(time - trial.started, 3) for time in times)
    return Panel(
        quantity="memory",
        title="memory on the card",
        unit="GiB",
        lines=tuple(
            Line(
                label=label,
                times=at,
                values=tuple(round(found.get(time, 0) / MIB / 1024, 4) for time in times),
            )
            for label, found in sums.items()
        ),
        caps=tuple(Cap(label=label, value=cap / 1024) for label, cap in caps.items() if cap),
    )


def share_panel(
    trial: Trial, shares: Mapping[str, float], key: Key, window_s: float = SHARE_WINDOW_S
) -> Panel:
    """Return the share of device time of each series of ``shares`` (percent).

    From ``busy_ns``, the device time that the card granted to each process since it
    began there: the sum over processes of its growth in a window, over the window.
    Where the card does not tell it (hardware), NVML's utilisation of each process.
    """
    granted = any(sample.busy_ns is not None for sample in trial.samples)
    find = _granted if granted else _utilisation
    return Panel(
        quantity="compute",
        title="share of device time" if granted else "utilisation as NVML tells",
        unit="%",
        lines=tuple(
            find(label, [s for s in trial.samples if key(s) == label], trial, window_s)
            for label in shares
        ),
        caps=tuple(Cap(label=label, value=value) for label, value in shares.items() if value),
    )


def _granted(label: str, samples: Sequence[Sample], trial: Trial, window_s: float) -> Line:
    """Sum up the growth of every process's counter, then take slopes of the sum."""
    times = sorted({sample.time for sample in trial.samples})
    growth: dict[float, int] = {}
    last: dict[tuple[str, int], int] = {}
    for sample in sorted(samples, key=lambda s: s.time):
        if sample.busy_ns is None:
            continue
        process = (sample.uuid, sample.pid)
        # A counter that falls is another process's with the same number.
        before = last.get(process, 0)
        grown = sample.busy_ns - before if sample.busy_ns >= before else sample.busy_ns
        growth[sample.time] = growth.get(sample.time, 0) + grown
        last[process] = sample.busy_ns
    total, sums = 0, []
    for time in times:
        total += growth.get(time, 0)
        sums.append(total)
    values: list[float | None] = []
    start = 0
    for position, time in enumerate(times):
        while start < position and time - times[start + 1] >= window_s:
            start += 1
        span = time - times[start]
        share = (sums[position] - sums[start]) / (span * 1e9) * 100 if span > 0 else None
        values.append(None if share is None else round(share, 2))
    at = tuple(round(time - trial.started, 3) for time in times)
    return Line(label=label, times=at, values=tuple(values))


def _utilisation(label: str, samples: Sequence[Sample], trial: Trial, window_s: float) -> Line:
    del window_s  # NVML has its own
    times = sorted({sample.time for sample in trial.samples})
    found: dict[float, float] = {}
    for sample in samples:
        if sample.utilization_pct is not None:
            found[sample.time] = found.get(sample.time, 0.0) + sample.utilization_pct
    at = tuple(round(time - trial.started, 3) for time in times)
    return Line(label=label, times=at, values=tuple(found.get(time) for time in times))


def phases(trial: Trial) -> tuple[Phase, ...]:
    """Return the phases that the workloads tell, one after the other.

    From first entry to last event, in the order of their ends. A pod that waits for
    its turn enters early, so a phase begins where the one before it ends at the soonest.
    """
    spans: dict[str, tuple[float, float]] = {}
    for pod in trial.pods.values():
        for event in pod.events:
            name, time = str(event.get("phase", "")), float(event["time"])
            if name:
                begin, end = spans.get(name, (time, time))
                spans[name] = (min(begin, time), max(end, time))
    found: list[Phase] = []
    for name, (begin, end) in sorted(spans.items(), key=lambda item: (item[1][1], item[1][0])):
        begin, end = round(begin - trial.started, 3), round(end - trial.started, 3)
        found.append(Phase(name=name, begin=max(begin, found[-1].end) if found else begin, end=end))
    return tuple(found)


def caption(panel: Panel, cap: Cap) -> str:
    """Return what stands at a cap's line; nothing where another one's words say it already."""
    same = [
        c.label for c in panel.caps if (c.value, c.begin, c.end) == (cap.value, cap.begin, cap.end)
    ]
    if cap.label != same[0]:
        return ""
    who = ", ".join(same) if len(same) < 3 else f"each of {len(same)}"
    return f"{who}: asked {cap.value:g} {panel.unit}"


def label_at_end(panel: Panel, cap: Cap, span: float, top: float) -> bool:
    """Tell whether a cap's name had better stand at its end than at its beginning.

    Wherever fewer lines cross it; at the beginning if that is all the same.

    Args:
        panel: With the lines.
        cap: Whose name is to be placed just above its line.
        span: Seconds that the picture shows.
        top: Value at its upper edge.
    """
    width, low, high = span * 0.25, cap.value - top * 0.01, cap.value + top * 0.09
    begin = 0.0 if cap.begin is None else cap.begin
    end = span if cap.end is None else cap.end

    def crossings(left: float, right: float) -> int:
        count = 0
        for line in panel.lines:
            known = [(t, v) for t, v in zip(line.times, line.values, strict=True) if v is not None]
            for (_, before), (time, after) in pairwise(known):
                inside = max(before, after) >= low and min(before, after) <= high
                count += left <= time <= right and inside
        return count

    return crossings(end - width, end) < crossings(begin, begin + width)


def read_chart(path: Path) -> Chart | None:
    """Return a stored chart, None where there is none.

    Raises:
        InputError: there is a file that holds no chart.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Chart)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a chart", why=str(error)) from error
