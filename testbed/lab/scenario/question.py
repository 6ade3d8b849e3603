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
class PodPlan:
    """A pod to run, without the names that only the cluster gives.

    Attributes:
        name: Short name in the case, ``a``.
        limits: Resource limits of its container, as strings.
        parameters: Handed to the workload as JSON in ``WORKLOAD_PARAMETERS``.
        workload: File name of the program in the question's folder.
        annotations: Annotations beside the pinning of a control run.
        scheduler: Explicit scheduler name; empty leaves it to the webhook.
        run_as_user: Another user (and group) than the image's.
    """

    name: str
    limits: Mapping[str, str]
    parameters: Mapping[str, Any]
    workload: str = "workload.py"
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    run_as_user: int | None = None


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
class PodTrace:
    """One pod's life: its final object and the facts its workload printed."""

    name: str
    uid: str
    node: str
    object: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    problem: str = ""  # why it did not run to its end

    def event(self, kind: str, phase: str = "") -> Mapping[str, Any] | None:
        """Return the first event of a kind (and phase), None where there is none."""
        for event in self.events:
            if event["event"] == kind and (not phase or event.get("phase") == phase):
                return event
        return None


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


class Question(Protocol):
    """One question, as ``scenarios/<name>/question.py`` defines it."""

    name: str
    title: str
    parameters: type[msgspec.Struct]
    asserts_limit: bool

    def validate(self, parameters: Any) -> None:
        """Refuse an impossible combination.

        Raises:
            InputError.
        """
        ...

    def plan(self, parameters: Any) -> Sequence[PodPlan]: ...

    def checks(self, parameters: Any, trial: Trial) -> tuple[Check, ...]: ...

    def control(self, parameters: Any, trial: Trial) -> Control: ...

    def chart(self, parameters: Any, trial: Trial, control: Trial | None) -> Chart:
        """Return what the pods did over time, with the caps (``report.chart``)."""
        ...
