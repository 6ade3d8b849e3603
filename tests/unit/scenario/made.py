"""Trials of one-container pods, made up from plain facts."""

from __future__ import annotations

from testbed.lab.scenario.question import ContainerTrace, PodTrace, Sample, Trial

UUID = "GPU-11111111-2222-3333-4444-555555555555"
TICK = 0.25


class Made:
    """Writes down what pods told and what the card counted for them."""

    def __init__(self, pods, enforcement="on"):
        self.events = {pod: [] for pod in pods}
        self.samples = []
        self.enforcement = enforcement
        self._busy = dict.fromkeys(pods, 0.0)
        self._at = {}

    def say(self, pod, event, time, phase="", **fields):
        told = {"event": event, "time": time, **({"phase": phase} if phase else {}), **fields}
        self.events[pod].append(told)

    def count(self, begin, end, *, share=None, held=None):
        """Let the card count from one time to another: percent of it, bytes, by pod."""
        steps = round((end - begin) / TICK)
        for number in range(steps + 1):
            time = begin + number * TICK
            for position, pod in enumerate(self.events):
                if number:
                    self._busy[pod] += (share or {}).get(pod, 0.0) / 100 * TICK
                sample = Sample(
                    time=time,
                    uuid=UUID,
                    pid=40 + position,
                    pod_uid=f"uid-{pod}",
                    container="main",
                    bytes=(held or {}).get(pod, 1),
                    busy_ns=round(self._busy[pod] * 1e9),
                )
                self._at[time, pod] = sample

    def trial(self):
        return Trial(
            enforcement=self.enforcement,
            pods={
                pod: PodTrace(
                    name=pod,
                    uid=f"uid-{pod}",
                    node="n1",
                    object={},
                    containers=(ContainerTrace(name="main", events=tuple(events)),),
                )
                for pod, events in self.events.items()
            },
            samples=tuple(self._at[key] for key in sorted(self._at)),
            source="emulated",
            registered={},
            ledger={},
            started=0.0,
            ended=1000.0,
        )
