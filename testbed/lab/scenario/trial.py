"""Run a case's pods once and bring home everything that was observed.

The driver knows nothing of what is checked. It starts the pods, reads the facts that
their workloads print, and takes them through their phases together: once everything
that still runs waits, those that wait in the earliest phase are released, after the
monitor has sampled them there. A pod may be deleted where others are released, or its
limits changed just before. What the cards counted meanwhile is collected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from testbed.errors import ClusterError, InputError, TestbedError, WaitTimeout
from testbed.lab.cluster.protocol import Step
from testbed.lab.deploy import Reading
from testbed.lab.scenario.patience import Patience, passing
from testbed.lab.scenario.question import ChangeTrace, LimitChange, Sample, Trial
from testbed.lab.scenario.room import check_room
from testbed.lab.scenario.watched import WatchedContainer, WatchedPod, where
from testbed.stack.model import Card

#: Sampling times of the monitor that must lie inside a phase before it is released.
TICKS = 3
POLL_SECONDS = 0.2
OVERLAP_SECONDS = 2.0
#: How long a pod may find no place. Nothing else runs on the cards, and what a trial
#: before has freed is back in the extender's ledger within a second or two.
PLACE_SECONDS = 30.0
#: How long a container may fail to be started: kubelet tries again a few times.
START_SECONDS = 45.0


class Access(Protocol):
    """What a trial needs of a cluster (thin, so that it can be faked in tests).

    Every call may be made again after a failure.
    """

    def start(self, manifests: Sequence[Mapping[str, Any]]) -> None: ...

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None: ...

    def log(self, namespace: str, name: str, container: str) -> str: ...

    def release(self, namespace: str, name: str, container: str, phase: str) -> bool:
        """Let a container go on; False where it could not be told (it may have ended)."""
        ...

    def delete(self, namespace: str, name: str) -> None: ...

    def set_limits(self, namespace: str, name: str, change: LimitChange) -> None:
        """Change the limits of a pod that runs."""
        ...

    def cards(self, since: float | Mapping[str, float]) -> Reading:
        """Return what the monitors sampled after a time (of each node's clock)."""
        ...

    def registered(self) -> Mapping[str, tuple[Card, ...]]: ...

    def ledger(self) -> Mapping[str, Any]: ...

    def unenforced(self) -> Mapping[tuple[str, str], str]:
        """Return the containers whose limits nothing holds, by pod uid and name, and why."""
        ...

    def why(self, namespace: str, name: str) -> str:
        """Return the last warnings about a pod, for people."""
        ...


def run_trial(
    access: Access,
    namespace: str,
    manifests: Sequence[Mapping[str, Any]],
    *,
    enforcement: str,
    deadline_seconds: float,
    deletions: Mapping[str, str] | None = None,
    changes: Mapping[str, Mapping[str, LimitChange]] | None = None,
    step: Step | None = None,
    watch: Callable[[Trial], None] | None = None,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Trial:
    """Start the pods, see them through all their phases, return what was seen.

    Args:
        access: The cluster.
        namespace: The trial's own.
        manifests: What to create there, pods among it.
        enforcement: ``on`` or ``off``, for the record.
        deadline_seconds: When to give up.
        deletions: Pod to the phase in which it is deleted instead of released.
        changes: Pod to the phases at whose end its limits are changed; without the limiter
            there is nothing to change, and the pod goes on.
        step: Told how far the pods are.
        watch: Called with what is known so far, at every look.
        clock: Seconds since 1970, for what is compared with the nodes' clocks.
        steady: Seconds, for deadlines: a clock that is set must not end a trial.
        pause: Waits for seconds.

    Raises:
        InputError: a pod finds no place on the cluster; nothing was created where it could
            not on its cards alone.
        ClusterError: a container cannot be started, or the cluster stayed silent.
        WaitTimeout: the pods did not end before the deadline; the text says where
            each of them stood.
    """
    run = _Run(
        access,
        namespace,
        manifests,
        enforcement,
        deletions or {},
        changes or {},
        step,
        clock,
        steady,
        pause,
    )
    begun = steady()
    while not run.look():
        if watch is not None:
            watch(run.trial())
        if steady() - begun > deadline_seconds:
            raise WaitTimeout(
                f"the pods of {namespace} did not end within {deadline_seconds:.0f} s",
                why=run.stuck(),
                hint="see the logs in the bundle; on a slow machine set VGPU_TESTBED_TRIAL_SECONDS",
            )
        pause(POLL_SECONDS)
    run.sample()
    return run.trial()


class _Run:
    """One trial while it runs."""

    def __init__(
        self,
        access: Access,
        namespace: str,
        manifests: Sequence[Mapping[str, Any]],
        enforcement: str,
        deletions: Mapping[str, str],
        changes: Mapping[str, Mapping[str, LimitChange]],
        step: Step | None,
        clock: Callable[[], float],
        steady: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._access, self._namespace = access, namespace
        self._enforcement, self._deletions, self._changes = enforcement, deletions, changes
        self._step, self._clock, self._steady = step, clock, steady
        self._patiently = Patience(steady, pause, self._tell)
        self._pods = [WatchedPod.of(m) for m in manifests if m["kind"] == "Pod"]
        self._samples: dict[tuple[float, str, int], Sample] = {}
        self._ledger: Mapping[str, Any] = {}
        self._unenforced: dict[tuple[str, str], str] = {}
        self._ahead: dict[str, float] = {}  # node -> its clock minus ours
        self.started = clock()
        first = self._patiently(lambda: access.cards(self.started))
        self._first = self._last = first
        self._since = _overlap(first.now)
        self._registered = self._patiently(access.registered)
        check_room(manifests, self._registered)
        self._patiently(lambda: access.start(manifests))

    def look(self) -> bool:
        """Look at everything once and let on who may go on; True once all have ended."""
        for pod in self._pods:
            if pod.looks:
                self._read(pod)
        _check_placed(self._pods, self._steady())
        _check_started(self._pods, self._steady())
        self.sample()
        ready = ready_containers(self._pods, list(self._samples.values()))
        if ready:
            if not self._ledger:
                self._ledger = self._patiently(self._access.ledger)
            self._unenforced |= self._patiently(self._access.unenforced)
            self._let_on(ready)
        self._tell(where(self._pods))
        return not any(pod.looks for pod in self._pods)

    def sample(self) -> None:
        """Take what the monitors have counted since the last time."""
        reading = self._patiently(lambda: self._access.cards(self._since))
        now = self._clock()
        self._ahead = {node: clock - now for node, clock in reading.now.items()}
        self._since = _overlap(reading.now)
        self._last = reading
        self._samples.update(_samples(reading))

    def trial(self) -> Trial:
        """Return what is known so far."""
        return Trial(
            enforcement=self._enforcement,
            pods={pod.name: pod.trace() for pod in self._pods},
            samples=tuple(sorted(self._samples.values(), key=lambda s: (s.time, s.uuid, s.pid))),
            source=self._last.source,
            registered=self._registered,
            ledger=self._ledger,
            unenforced=dict(self._unenforced),
            started=self.started,
            ended=self._clock(),
            budget_hits=_hits(self._last) - _hits(self._first),
        )

    def stuck(self) -> str:
        """Return where each pod stands, with the cluster's warnings and its last lines."""
        return "; ".join(self._stuck(pod) for pod in self._pods if not pod.ended)

    # --- below -----------------------------------------------------------------
    def _tell(self, text: str) -> None:
        if self._step is not None:
            self._step.update(text)

    def _read(self, pod: WatchedPod) -> None:
        found = self._patiently(lambda: self._access.pod(self._namespace, pod.name))
        if found is None and pod.object:
            pod.gone, pod.looks = self._node_time(pod), 0
            return
        pod.object = found or pod.object
        whole = True
        for container in pod.containers:
            read = partial(self._access.log, self._namespace, pod.name, container.name)
            whole &= container.read(self._patiently(read))
        if pod.ended:
            pod.looks = 0 if whole else pod.looks - 1

    def _let_on(self, ready: Sequence[tuple[WatchedContainer, str]]) -> None:
        leaving = {
            container.pod.name: container.pod
            for container, phase in ready
            if self._deletions.get(container.pod.name) == phase
        }
        for pod in leaving.values():
            pod.deleted = self._node_time(pod)
            self._patiently(partial(self._access.delete, self._namespace, pod.name))
        staying = [
            (c, phase)
            for c, phase in ready
            if c.pod.name not in leaving and self._changed(c.pod, phase)
        ]
        for container, phase in ready:
            if container.pod.name in leaving:
                container.released.add(phase)
        if staying:
            # Together: one after the other would cost as much as a short phase.
            with ThreadPoolExecutor(max_workers=min(8, len(staying))) as pool:
                told = list(pool.map(lambda item: self._release(*item), staying))
            for (container, phase), done in zip(staying, told, strict=True):
                if done:
                    container.released.add(phase)

    def _changed(self, pod: WatchedPod, phase: str) -> bool:
        """Change what is to be changed then; False where that has to be tried again."""
        change = self._changes.get(pod.name, {}).get(phase)
        if change is None or phase in pod.changes:
            return True
        asked, why = self._node_time(pod), ""
        if self._enforcement == "off":
            why = "nothing limits it"
        else:
            try:
                self._access.set_limits(self._namespace, pod.name, change)
            except TestbedError as error:
                if passing(error):
                    return False
                why = error.why or error.what
        pod.changes[phase] = ChangeTrace(asked=asked, done=self._node_time(pod), why=why)
        return True

    def _release(self, container: WatchedContainer, phase: str) -> bool:
        """Release one container; a failure is tried again at the next look."""
        try:
            return self._access.release(self._namespace, container.pod.name, container.name, phase)
        except TestbedError as error:
            if not passing(error):
                raise
            return False

    def _node_time(self, pod: WatchedPod) -> float:
        return self._clock() + self._ahead.get(pod.node, 0.0)

    def _stuck(self, pod: WatchedPod) -> str:
        try:
            warnings = self._access.why(self._namespace, pod.name)
        except ClusterError as error:
            warnings = error.what
        lines = " | ".join(line for c in pod.containers for line in c.noise[-2:])
        told = [f"pod {pod.phase}", warnings, f"last lines: {lines}" if lines else ""]
        return f"{where([pod])} ({'; '.join(part for part in told if part)})"


def ready_containers(
    pods: Sequence[WatchedPod], samples: Sequence[Sample]
) -> tuple[tuple[WatchedContainer, str], ...]:
    """Return who may go on now, each with the phase that it waits in.

    Everything that still runs must wait (what has ended holds nobody up). Of those the
    ones with the lowest ``index`` go on: a workload whose allocator failed has run
    ahead, and one that has nothing to do in a phase waits in the next. The monitor
    must have sampled all of them there as often as they ask (``ticks``).
    """
    running = [c for pod in pods for c in pod.containers if not c.ended]
    if not running or any(not pod.object for pod in pods):
        return ()
    waiting = [(container, container.waiting()) for container in running]
    if any(event is None for _, event in waiting):
        return ()
    held = [(container, event) for container, event in waiting if event is not None]
    lowest = min(int(event.get("index", 0)) for _, event in held)
    first = [(c, e) for c, e in held if int(e.get("index", 0)) == lowest]
    full_since = max(float(event["time"]) for _, event in first)
    ticks = max(int(event.get("ticks", TICKS)) for _, event in first)
    times = {sample.time for sample in samples if sample.time > full_since}
    if len(times) < ticks:
        return ()
    return tuple((container, str(event["phase"])) for container, event in first)


def _check_placed(pods: Iterable[WatchedPod], now: float) -> None:
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


def _check_started(pods: Iterable[WatchedPod], now: float) -> None:
    for pod in pods:
        why = pod.stuck()
        if not why:
            pod.stuck_since = None
        elif pod.stuck_since is None:
            pod.stuck_since = now
        elif now - pod.stuck_since > START_SECONDS:
            raise ClusterError(f"pod {pod.name} does not start", why=why)


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
