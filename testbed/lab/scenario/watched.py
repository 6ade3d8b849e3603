"""Pods of a trial while they run: what is known of each, and where it waits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.lab.scenario.question import ChangeTrace, ContainerTrace, PodTrace

#: How many of a container's last lines a failure shows.
LAST_LINES = 3

#: How often the logs of a pod that has ended are asked for, where its node has lost
#: them for the moment.
LAST_LOOKS = 20

#: Waiting reasons of a container that its kubelet does not get out of by itself.
STUCK = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


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


@dataclass(slots=True)
class WatchedContainer:
    """One container while it runs."""

    pod: WatchedPod
    name: str
    events: list[Mapping[str, Any]] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)
    released: set[str] = field(default_factory=set)

    def read(self, log: str) -> bool:
        """Take over a log; one that a node has lost for the moment is refused."""
        events, noise = parse_events(log)
        if len(events) + len(noise) < len(self.events) + len(self.noise):
            return False
        self.events, self.noise = events, noise
        return True

    @property
    def ended(self) -> bool:
        """Tell whether nothing of it runs any more."""
        if self.pod.ended:
            return True
        status = self.pod.container_status(self.name)
        return "terminated" in status.get("state", {})

    def waiting(self) -> Mapping[str, Any] | None:
        """Return the ``holding`` event that still waits for its release."""
        passed = {e.get("phase") for e in self.events if e["event"] in ("released", "error")}
        for event in reversed(self.events):
            if (
                event["event"] == "holding"
                and event["phase"] not in passed
                and event["phase"] not in self.released
            ):
                found: Mapping[str, Any] = event
                return found
        return None

    def where(self) -> str:
        """Return how far it is, for people."""
        last = self.events[-1] if self.events else {}
        if last.get("event") == "steps":
            return f"{last['steps']} steps {last.get('phase', '')}".strip()
        return f"{last.get('event', self.pod.phase)} {last.get('phase', '')}".strip()

    def trace(self) -> ContainerTrace:
        """Return its life so far."""
        problem = ""
        cut_off = self.pod.deleted is not None  # by the trial: it was not to end by itself
        if not cut_off and not any(event["event"] == "finished" for event in self.events):
            problem = f"pod {self.pod.name} {self.pod.phase}: {self._why()}"
        return ContainerTrace(name=self.name, events=tuple(self.events), problem=problem)

    def _why(self) -> str:
        status = self.pod.object.get("status", {})
        state = self.pod.container_status(self.name).get("state", {})
        ended = state.get("terminated", {})
        gone = self.pod.gone is not None
        told = [
            "somebody deleted it" if gone else "",
            status.get("message") or status.get("reason") or "",
            state.get("waiting", {}).get("message", ""),
            f"container {self.name} ended with status {ended['exitCode']}" if ended else "",
            ended.get("message", ""),
        ]
        lines = " | ".join(self.noise[-LAST_LINES:]) or "no output"
        return "; ".join([*dict.fromkeys(part for part in told if part), f"last lines: {lines}"])


@dataclass(slots=True)
class WatchedPod:
    """One pod while it runs.

    Attributes:
        deleted: When its deletion was asked for, by its node's clock.
        gone: When the API server no longer had it, likewise.
        changes: Of its limits that were made, by phase.
        refused_since: Since when the scheduler finds no place for it.
        stuck_since: Since when one of its containers cannot be started.
        looks: How often its last logs are still asked for after its end; 0: no more.
    """

    name: str
    object: Mapping[str, Any] = field(default_factory=dict)
    containers: list[WatchedContainer] = field(default_factory=list)
    deleted: float | None = None
    gone: float | None = None
    changes: dict[str, ChangeTrace] = field(default_factory=dict)
    refused_since: float | None = None
    stuck_since: float | None = None
    looks: int = LAST_LOOKS

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> WatchedPod:
        """Return what is known of a pod that is about to be created."""
        pod = cls(name=manifest["metadata"]["name"])
        pod.containers = [
            WatchedContainer(pod=pod, name=container["name"])
            for container in manifest["spec"]["containers"]
        ]
        return pod

    @property
    def phase(self) -> str:
        return str(self.object.get("status", {}).get("phase", "Pending"))

    @property
    def node(self) -> str:
        return str(self.object.get("spec", {}).get("nodeName", ""))

    @property
    def ended(self) -> bool:
        return self.gone is not None or self.phase in ("Succeeded", "Failed")

    def container_status(self, name: str) -> Mapping[str, Any]:
        """Return kubelet's word on a container; nothing before it has one."""
        for status in self.object.get("status", {}).get("containerStatuses") or ():
            if status.get("name") == name:
                found: Mapping[str, Any] = status
                return found
        return {}

    def refusal(self) -> str:
        """Return why the scheduler finds no place for the pod, nothing if it does not say."""
        for condition in self.object.get("status", {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                return str(condition.get("message", "")) or "the scheduler does not say"
        return ""

    def stuck(self) -> str:
        """Return why a container of it cannot be started, nothing if none is stuck."""
        for container in self.containers:
            waiting = self.container_status(container.name).get("state", {}).get("waiting", {})
            if waiting.get("reason") in STUCK:
                told = waiting.get("message") or ""
                return f"container {container.name}: {waiting['reason']} {told}".strip()
        return ""

    def trace(self) -> PodTrace:
        """Return its life so far."""
        return PodTrace(
            name=self.name,
            uid=str(self.object.get("metadata", {}).get("uid", "")),
            node=self.node,
            object=self.object,
            containers=tuple(container.trace() for container in self.containers),
            deleted=self.deleted,
            gone=self.gone,
            changes=dict(self.changes),
        )


def where(pods: Iterable[WatchedPod]) -> str:
    """Return how far each pod is, on one line."""
    parts = []
    for pod in pods:
        for container in pod.containers:
            label = pod.name if len(pod.containers) == 1 else f"{pod.name}/{container.name}"
            parts.append(f"{label}: {'gone' if pod.gone is not None else container.where()}")
    return ", ".join(parts)
