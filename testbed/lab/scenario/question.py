"""What a question is: parameters, pods, checks, control and plot, all pure.

A question never talks to a cluster. It says which pods to run, and judges the
``Trial`` that came of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from testbed.lab.scenario.record import Check, Control
from testbed.stack.model import Card

if TYPE_CHECKING:
    from testbed.lab.report.chart import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """A container to run.

    Attributes:
        name: Its name in the pod.
        limits: Resource limits, as strings.
        parameters: Handed to the workload as JSON in ``WORKLOAD_PARAMETERS``.
        workload: File name of the program in the question's folder.
        env: Environment, as the pod's author sets it.
    """

    name: str = "main"
    limits: Mapping[str, str]
    parameters: Mapping[str, Any]
    workload: str = "workload.py"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """New limits of a pod that runs, as ``testbed limits set`` gives them; None stays."""

    gpumem_mib: int | None = None
    gpucores_pct: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """A pod to run, without the names that only the cluster gives.

    Attributes:
        name: Short name in the case, ``a``.
        containers: What runs in it, in the order of the pod.
        files: Files that the programs need beside their own: of the question's folder, or
            those that all workloads share (``lab/scenario/workload``).
        annotations: Annotations beside the pinning of a control run.
        scheduler: Explicit scheduler name; empty leaves it to the webhook.
        run_as_user: Another user (and group) than the image's.
        delete_in: Phase in which the pod is deleted instead of released.
        limits_in: Phases at whose end its limits are changed, before it is released.
    """

    name: str
    containers: tuple[ContainerPlan, ...]
    files: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    run_as_user: int | None = None
    delete_in: str = ""
    limits_in: Mapping[str, LimitChange] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One figure of the monitor: what the card counts for one process at one time."""

    time: float
    uuid: str
    pid: int
    pod_uid: str
    container: str
    bytes: int
    busy_ns: int | None = None  # device time granted to the process since it began there
    utilization_pct: float | None = None  # of the process, in NVML's newest sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerTrace:
    """One container's life: the facts its workload printed."""

    name: str
    events: tuple[Mapping[str, Any], ...]
    problem: str = ""  # why it did not run to its end, with its last lines

    def event(self, kind: str, phase: str = "", **fields: Any) -> Mapping[str, Any] | None:
        """Return the first event of a kind (phase, other fields), None without one."""
        for event in self.events:
            if (
                event["event"] == kind
                and (not phase or event.get("phase") == phase)
                and all(event.get(key) == value for key, value in fields.items())
            ):
                return event
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTrace:
    """A change of limits, by the pod's node's clock: when it was asked for and when it was done.

    Attributes:
        why: Why it was not made; empty: it was.
    """

    asked: float
    done: float
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTrace:
    """One pod's life: its final object and what its containers printed.

    Attributes:
        deleted: When its deletion was asked for, by its node's clock; None: it was not.
        gone: When the API server no longer had it, likewise.
        changes: Of its limits, by the phase at whose end they were made.
    """

    name: str
    uid: str
    node: str
    object: Mapping[str, Any]
    containers: tuple[ContainerTrace, ...]
    deleted: float | None = None
    gone: float | None = None
    changes: Mapping[str, ChangeTrace] = field(default_factory=dict)

    def container(self, name: str) -> ContainerTrace:
        """Return one container's trace; an empty one that says so where there is none."""
        for trace in self.containers:
            if trace.name == name:
                return trace
        return ContainerTrace(name=name, events=(), problem=f"no container {name}")

    @property
    def events(self) -> tuple[Mapping[str, Any], ...]:
        """All containers' facts."""
        return tuple(event for trace in self.containers for event in trace.events)

    @property
    def problem(self) -> str:
        """Why a container of it did not run to its end."""
        return "; ".join(trace.problem for trace in self.containers if trace.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Everything that one run of a case's pods left behind."""

    enforcement: str
    pods: Mapping[str, PodTrace]
    samples: tuple[Sample, ...]
    source: str  # where the samples came from: emulated | nvml
    registered: Mapping[str, tuple[Card, ...]]  # node -> cards
    ledger: Mapping[str, Any]  # the extender's answer to /debug/ledger while the pods ran
    started: float
    ended: float
    budget_hits: int = 0  # refusals by the host's memory budget, on any card, meanwhile
    #: (pod uid, container) -> why nothing held its limits, as monitors told when a phase was full.
    unenforced: Mapping[tuple[str, str], str] = field(default_factory=dict)


class Question(Protocol):
    """One question, as ``scenarios/<name>/question.py`` defines it."""

    name: str
    title: str
    parameters: type[msgspec.Struct]
    asserts_limit: bool
    #: A sentence for each check's name.
    meanings: Mapping[str, str]

    def validate(self, parameters: Any) -> None:
        """Refuse an impossible combination.

        Raises:
            InputError.
        """
        ...

    def plan(self, parameters: Any) -> Sequence[PodPlan]: ...

    def needs(self, parameters: Any) -> int:
        """Return how many cards one node must have for the case to fit."""
        ...

    def checks(
        self, parameters: Any, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter.

        Args:
            parameters: The case's.
            trial: The run.
            control: The run without the limiter, once there was one: what a workload does
                there alone on the card is what its share is measured against.
        """
        ...

    def control(self, parameters: Any, trial: Trial) -> Control: ...

    def chart(self, parameters: Any, trial: Trial, control: Trial | None) -> Chart:
        """Return what the pods did over time, with the caps (``report.chart``)."""
        ...


class OneCard:
    """A question whose pods meet on one card."""

    def needs(self, parameters: Any) -> int:
        """Return how many cards one node must have."""
        del parameters
        return 1


class NoPods(OneCard):
    """A question whose pods are decided about and do not run: no real card is used."""

    def plan(self, parameters: Any) -> Sequence[PodPlan]:
        """Return nothing: no pod runs."""
        del parameters
        return ()
