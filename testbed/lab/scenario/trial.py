"""Run a case's pods once and bring home everything that was observed.

The driver knows nothing of what is checked. It starts the pods, reads the facts
that their workloads print, releases them together once every pod that still runs
has reached the same phase and the monitor has sampled all of them there, and
collects what the card counted meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from testbed.errors import ClusterError, InputError, WaitTimeout
from testbed.lab.cluster.protocol import Step
from testbed.lab.deploy import Reading
from testbed.lab.scenario.question import PodTrace, Sample, Trial
from testbed.stack.model import Card

#: Sampling times of the monitor that must lie inside a phase before it is released.
TICKS = 3
POLL_SECONDS = 0.2
OVERLAP_SECONDS = 2.0
#: How long a pod may find no place. Nothing else runs on the cards, and what a trial
#: before has freed is back in the extender's ledger within a second or two.
PLACE_SECONDS = 30.0


class Access(Protocol):
    """What a trial needs of a cluster (thin, so that it can be faked in tests)."""

    def start(self, manifests: Sequence[Mapping[str, Any]]) -> None: ...

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None: ...

    def log(self, namespace: str, name: str) -> str: ...

    def release(self, namespace: str, name: str, phase: str) -> None: ...

    def cards(self, since: float | Mapping[str, float]) -> Reading:
        """Return what the monitors sampled after a time (of each node's clock)."""
        ...

    def registered(self) -> Mapping[str, tuple[Card, ...]]: ...

    def ledger(self) -> Mapping[str, Any]: ...

    def why(self, namespace: str, name: str) -> str:
        """Return the last warnings about a pod, for people."""
        ...


@dataclass(slots=True)
class _Watched:
    """One pod while it runs."""

    name: str
    object: Mapping[str, Any] = field(default_factory=dict)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    released: set[str] = field(default_factory=set)
    noise: list[str] = field(default_factory=list)
    refused_since: float | None = None  # by the scheduler

    @property
    def phase(self) -> str:
        return str(self.object.get("status", {}).get("phase", "Pending"))

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def refusal(self) -> str:
        """Return why the scheduler finds no place for the pod, nothing if it does not say."""
        for condition in self.object.get("status", {}).get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                return str(condition.get("message", "")) or "the scheduler does not say"
        return ""

    def waiting_phase(self) -> Mapping[str, Any] | None:
        """Return the ``holding`` event that still waits for its release."""
        open_phases = [e for e in self.events if e["event"] == "holding"]
        gone = {e["phase"] for e in self.events if e["event"] in ("released", "error")}
        for event in reversed(open_phases):
            if event["phase"] not in gone and event["phase"] not in self.released:
                found: Mapping[str, Any] = event
                return found
        return None


def parse_events(log: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the facts in a workload's log and the lines that are none."""
    events: list[Mapping[str, Any]] = []
    noise: list[str] = []
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event and "time" in event:
            events.append(event)
        elif line.strip():
            noise.append(line)
    return events, noise


def run_trial(
    access: Access,
    namespace: str,
    manifests: Sequence[Mapping[str, Any]],
    *,
    enforcement: str,
    deadline_seconds: float,
    step: Step | None = None,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> Trial:
    """Start the pods, see them through all their phases, return what was seen.

    Raises:
        InputError: a pod finds no place on the cluster.
        WaitTimeout: the pods did not end before the deadline; the text says where
            each of them stood.
    """
    started = clock()
    names = [m["metadata"]["name"] for m in manifests if m["kind"] == "Pod"]
    watched = {name: _Watched(name=name) for name in names}
    samples: dict[tuple[float, str, int], Sample] = {}
    first = access.cards(started)
    source, since = first.source, _overlap(first.now)
    registered = access.registered()
    ledger: Mapping[str, Any] = {}
    access.start(manifests)
    while True:
        for pod in watched.values():
            if not pod.ended:
                pod.object = access.pod(namespace, pod.name) or pod.object
                pod.events, pod.noise = parse_events(access.log(namespace, pod.name))
        _check_placed(watched.values(), clock())
        reading = access.cards(since)
        since = _overlap(reading.now)
        samples.update(_samples(reading))
        ready = ready_phase(list(watched.values()), list(samples.values()))
        if ready:
            ledger = access.ledger() or ledger
            for pod in watched.values():
                event = pod.waiting_phase()
                if event is not None and event["phase"] == ready:
                    access.release(namespace, pod.name, ready)
                    pod.released.add(ready)
        if step is not None:
            step.update(_where(watched.values()))
        if all(pod.ended for pod in watched.values()):
            break
        if clock() - started > deadline_seconds:
            raise WaitTimeout(
                f"the pods of {namespace} did not end within {deadline_seconds:.0f} s",
                why="; ".join(_stuck(access, namespace, pod) for pod in watched.values()),
                hint="see the logs in the bundle; on a slow machine set VGPU_TESTBED_TRIAL_SECONDS",
            )
        pause(POLL_SECONDS)
    last = access.cards(since)
    samples.update(_samples(last))
    return Trial(
        enforcement=enforcement,
        pods={pod.name: _trace(pod) for pod in watched.values()},
        samples=tuple(sorted(samples.values(), key=lambda s: (s.time, s.uuid, s.pid))),
        source=source,
        registered=registered,
        ledger=ledger,
        started=started,
        ended=clock(),
        budget_hits=_hits(last) - _hits(first),
    )


def ready_phase(pods: Sequence[_Watched], samples: Sequence[Sample]) -> str:
    """Return the phase that may be released now, or nothing.

    Every pod that still runs must wait in the same phase (an ended pod holds nobody
    up), and the monitor must have sampled all of them there ``TICKS`` times.
    """
    running = [pod for pod in pods if not pod.ended]
    if not running or any(not pod.object for pod in pods):
        return ""
    waiting = [pod.waiting_phase() for pod in running]
    if any(event is None for event in waiting):
        return ""
    phases = {event["phase"] for event in waiting if event is not None}
    if len(phases) > 1:
        # A pod whose allocator failed has run ahead: let the ones behind catch up.
        order = [e["phase"] for e in max(pods, key=lambda p: len(p.events)).events]
        phases = {min(phases, key=lambda p: order.index(p) if p in order else len(order))}
    phase = str(phases.pop())
    full_since = max(
        event["time"] for event in waiting if event is not None and event["phase"] == phase
    )
    times = {sample.time for sample in samples if sample.time > full_since}
    return phase if len(times) >= TICKS else ""


def _check_placed(pods: Iterable[_Watched], now: float) -> None:
    """Give up on a case that cannot run, long before its deadline."""
    for pod in pods:
        why = pod.refusal()
        if not why:
            pod.refused_since = None
        elif pod.refused_since is None:
            pod.refused_since = now
        elif now - pod.refused_since > PLACE_SECONDS:
            raise InputError(
                f"pod {pod.name} finds no place",
                why=why,
                hint="ask for less, or bring up more cards (testbed up --cards a100-80gb:2)",
            )


def _overlap(now: Mapping[str, float]) -> dict[str, float]:
    """Ask again for the last moment: a sample may be stored after a later answer."""
    return {node: clock - OVERLAP_SECONDS for node, clock in now.items()}


def _samples(reading: Reading) -> dict[tuple[float, str, int], Sample]:
    """Return a reading's samples by identity, so that an overlap counts once."""
    return {
        (s.time, s.uuid, s.pid): Sample(
            time=s.time,
            uuid=s.uuid,
            pid=s.pid,
            pod_uid=s.pod_uid,
            container=s.container,
            bytes=s.bytes,
            busy_ns=s.busy_ns,
            utilization_pct=s.utilization_pct,
        )
        for s in reading.samples
    }


def _hits(reading: Reading) -> int:
    return sum(card.budget_hits for card in reading.cards)


def _trace(pod: _Watched) -> PodTrace:
    finished = next((e for e in pod.events if e["event"] == "finished"), None)
    problem = ""
    if finished is None:
        status = pod.object.get("status", {})
        problem = f"pod {pod.phase}: " + (
            status.get("message")
            or status.get("reason")
            or (pod.noise[-1] if pod.noise else "no output")
        )
    return PodTrace(
        name=pod.name,
        uid=str(pod.object.get("metadata", {}).get("uid", "")),
        node=str(pod.object.get("spec", {}).get("nodeName", "")),
        object=pod.object,
        events=tuple(pod.events),
        problem=problem,
    )


def _where(pods: Iterable[_Watched]) -> str:
    parts = []
    for pod in pods:
        last = pod.events[-1] if pod.events else {}
        text = f"{last.get('event', pod.phase)} {last.get('phase', '')}".strip()
        parts.append(f"{pod.name}: {text}")
    return ", ".join(parts)


def _stuck(access: Access, namespace: str, pod: _Watched) -> str:
    try:
        why = access.why(namespace, pod.name)
    except ClusterError as error:
        why = error.what
    return f"{_where([pod])} (pod {pod.phase}{'; ' + why if why else ''})"
