"""Who shares the cards: parameters of a case, and its containers by name (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from testbed.lab.scenario.failure import last_error
from testbed.lab.scenario.question import ContainerTrace, Sample, Trial
from testbed.lab.scenario.record import Check

ALLOCATORS = ("uncached", "native", "expandable_segments", "cudaMallocAsync")
ONLY = "main"  # name of a pod's container where the case names none


class ContainerParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one container asks for."""

    gpumem: int | None = None  # MiB of each card; None: all of it
    gpu: int = 1  # cards
    gpucores: int = 0  # percent of each card; 0: no limit


class PodParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one pod asks for: for its only container, or for each of several."""

    gpumem: int | None = None
    gpu: int = 1
    gpucores: int = 0
    containers: dict[str, ContainerParameters] = {}
    run_as_user: int | None = None  # None: the image's, which is root

    def each(self) -> dict[str, ContainerParameters]:
        """Return what each container asks for, by name."""
        if self.containers:
            return dict(self.containers)
        own = ContainerParameters(gpumem=self.gpumem, gpu=self.gpu, gpucores=self.gpucores)
        return {ONLY: own}


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    pods: dict[str, PodParameters]
    allocators: tuple[str, ...] = ALLOCATORS
    #: Where the memory part stops by itself, percent of its cap: only a run without a
    #: limiter gets there.
    ceiling_pct: int = 110
    #: How long a pod waits to be released before it goes on alone.
    hold_seconds: float = 120.0
    #: How shares of compute are held: ``force`` always, ``default`` beside a neighbour
    #: only, ``disable`` never (GPU_CORE_UTILIZATION_POLICY in the containers).
    policy: Literal["default", "force", "disable"] = "default"
    #: How long each container with a share works alone on its cards.
    alone_seconds: float = 6.0
    #: Over how long shares are measured while all work.
    together_seconds: float = 20.0
    #: The pod that is deleted while all work; empty for none.
    kill: str = ""
    #: Pods are to lie on cards of their own.
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One container of the case.

    Attributes:
        label: ``a``, or ``a/side`` in a pod of several.
        asked: What it asks for.
        limited: Whether the case asserts its share of compute.
    """

    label: str
    pod: str
    container: str
    asked: ContainerParameters
    limited: bool

    @property
    def alone(self) -> str:
        """The phase in which it works alone."""
        return "alone-" + self.label.replace("/", "-")

    def trace(self, trial: Trial) -> ContainerTrace:
        """Return what it told in a trial."""
        return trial.pods[self.pod].container(self.container)

    def cards(self, trial: Trial) -> tuple[str, ...]:
        """Return the uuids of its cards in a trial, in the container's order."""
        found = dict.fromkeys(e["uuid"] for e in self.trace(trial).events if "uuid" in e)
        return tuple(found)


def tenants(parameters: Parameters) -> tuple[Tenant, ...]:
    """Return all containers of a case, in its order."""
    found = []
    for pod, asked in parameters.pods.items():
        members = asked.each()
        for container, own in members.items():
            found.append(
                Tenant(
                    label=pod if len(members) == 1 else f"{pod}/{container}",
                    pod=pod,
                    container=container,
                    asked=own,
                    limited=0 < own.gpucores < 100 and parameters.policy != "disable",
                )
            )
    return tuple(found)


def computes(parameters: Parameters) -> bool:
    """Tell whether the case is about compute at all."""
    return any(tenant.asked.gpucores for tenant in tenants(parameters))


def named_cards(uuids: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return each card with its name in a variant; an only one has no name.

    A tenant of which no card is known has one without uuid, so that its checks are
    made, and are errors.
    """
    if len(uuids) < 2:
        return ((uuids[0] if uuids else "", ""),)
    return tuple((uuid, f"card {number}") for number, uuid in enumerate(uuids))


def variant(*parts: str) -> str:
    """Return the name of one of several ways to ask the same."""
    return ", ".join(part for part in parts if part)


def missing(check: Check, trace: ContainerTrace, phase: str) -> Check:
    """Return the error of a check whose workload never told what it needs."""
    failure = trace.event("error", phase) or trace.event("error", "compute")
    if failure is None:
        why = trace.problem or "no such event"
    else:
        told = last_error(str(failure["text"])).splitlines()
        why = told[0] if told else f"its process ended with {failure['code']} and said nothing"
    return msgspec.structs.replace(
        check, verdict="error", reason=f"the workload of {check.pod} did not get there: {why}"
    )


def strangers(samples: Iterable[Sample]) -> str:
    """Return why figures cannot be told apart, where processes of no pod were there."""
    pids = sorted({str(s.pid) for s in samples if s.pod_uid == "unknown" and s.bytes})
    return f"processes of no pod were on the card (pid {', '.join(pids)})" if pids else ""
