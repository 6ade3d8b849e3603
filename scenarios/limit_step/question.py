"""Does a pod that runs follow when its limit is changed?

Pure: says which pod to run and which limits it gets while it works, and judges what the
card granted to it before and after each change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Cap, Chart, make_chart
from testbed.lab.scenario.control import control_of
from testbed.lab.scenario.failure import unreached
from testbed.lab.scenario.question import (
    ContainerPlan,
    LimitChange,
    OneCard,
    PodPlan,
    Trial,
)
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.shares import judge_share, pod_share
from testbed.stack import names
from testbed.units import MIB

POD = "p"
MEMORY = "memory"
#: Within this a change of the limit has settled, seconds.
SETTLE_SECONDS = 2.0
#: Percentage points: over all of a step that has settled, and over its first second.
POINTS, SECOND_POINTS = 2.0, 3.0
#: Below its limit a program may fall by so much more when its host has no time for it.
HOST_POINTS = 3.0
#: Room for sampling times at both ends of that second (the monitor's period is 0.25 s).
SECOND = 1.5
#: The control must be above what was asked for by this much more than the tolerance.
MARGIN_POINTS = 5.0
#: What a program with a full queue surely has of a card without a limiter, percent.
SURELY_PCT = 90.0
TICK_SECONDS = 0.25
#: The library's own figure is a granule of the driver's off at most (2 MiB).
GRANULE_MIB = 2.0

MEANINGS = {
    "followed": "Two seconds after its limit was changed, a pod that runs has what the new limit"
    " says, and keeps it to the next change.",
    "settled": "So it has in the very first second after those two.",
    "refused": "A memory limit that is lowered below what a pod holds takes nothing away, and"
    " refuses everything new until enough was freed.",
}


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    #: Shares of compute, percent, one after the other; the first is what the pod asks for.
    shares: tuple[int, ...]
    #: How long each lasts, seconds.
    seconds: float = 8.0
    kernel_us: int = 1000
    #: The pod's memory, MiB, and what its limit is lowered to while it holds 3/4; 0: it is not.
    gpumem: int = 4096
    lowered: int = 2048
    #: How long the pod waits for each change before it goes on alone.
    hold_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of the pod's life with one limit."""

    number: int
    share: int
    before: int | None

    @property
    def phase(self) -> str:
        return f"step-{self.number}-{self.share}"

    @property
    def variant(self) -> str:
        if self.before is None:
            return f"step {self.number}: {self.share} %"
        return f"step {self.number}: {self.before} to {self.share} %"


def steps(parameters: Parameters) -> tuple[Step, ...]:
    """Return the steps in their order."""
    before: tuple[int | None, ...] = (None, *parameters.shares)
    return tuple(
        Step(number=number, share=share, before=previous)
        for number, (share, previous) in enumerate(
            zip(parameters.shares, before, strict=False), start=1
        )
    )


class LimitStep(OneCard):
    """The question, as the testbed runs it."""

    name = "limit_step"
    title = "Does a pod that runs follow when its limit is changed?"
    parameters = Parameters
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def validate(self, parameters: Parameters) -> None:
        """Refuse what cannot run, or what no control could tell."""
        shares = parameters.shares
        if not 2 <= len(shares) <= 12 or any(a == b for a, b in pairwise(shares)):
            raise InputError(
                f"shares are {list(shares)}", hint="name two to twelve, each other than the last"
            )
        if not all(1 <= share <= 80 for share in shares) or max(shares) > shares[0]:
            raise InputError(
                f"shares are {list(shares)}",
                why="a limit is raised up to what the pod asked for, which is the first; above"
                " 80 % no control could tell a share from none",
                hint="use 1 to 80, the largest first",
            )
        if not 5 <= parameters.seconds <= 120 or not 10 <= parameters.hold_seconds <= 600:
            raise InputError(
                f"seconds is {parameters.seconds:g}, hold_seconds {parameters.hold_seconds:g}",
                hint="use 5 to 120, 10 to 600",
            )
        if not 50 <= parameters.kernel_us <= 100_000:
            raise InputError(f"kernel_us is {parameters.kernel_us}", hint="use 50 to 100000")
        lowered = parameters.lowered
        if not 2048 <= parameters.gpumem <= 65536 or not (
            lowered == 0 or 1024 <= lowered <= parameters.gpumem // 2
        ):
            raise InputError(
                f"gpumem is {parameters.gpumem}, lowered {lowered}",
                why="it must fall below the three quarters that the pod holds",
                hint="use 2048 to 65536, and at most half of it (or 0)",
            )

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return the pod, with the changes that it meets."""
        parts = steps(parameters)
        changes = {
            part.phase: LimitChange(gpucores_pct=following.share)
            for part, following in pairwise(parts)
        }
        phases = [
            {"name": part.phase, "index": part.number, "ticks": self._ticks(parameters)}
            for part in parts
        ]
        if parameters.lowered:
            changes[MEMORY] = LimitChange(gpumem_mib=parameters.lowered)
            phases.append({"name": MEMORY, "index": len(parts) + 1, "ticks": 1})
        return (
            PodPlan(
                name=POD,
                containers=(
                    ContainerPlan(
                        limits={
                            names.RESOURCE_COUNT: "1",
                            names.RESOURCE_MEMORY: str(parameters.gpumem),
                            names.RESOURCE_CORES: str(parameters.shares[0]),
                        },
                        env={names.ENV_CORE_POLICY: "force"},
                        parameters={
                            "kernel_us": parameters.kernel_us,
                            "phases": phases,
                            "held_mib": parameters.gpumem * 3 // 4 if parameters.lowered else 0,
                            "hold_seconds": parameters.hold_seconds + parameters.seconds,
                        },
                    ),
                ),
                files=("facts.py", "spin.py"),
                limits_in=changes,
            ),
        )

    @staticmethod
    def _ticks(parameters: Parameters) -> int:
        return round(parameters.seconds / TICK_SECONDS)

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        del control
        found = []
        for step in steps(parameters):
            found.append(followed(step, trial, parameters))
            if step.before is not None:
                found.append(settled(step, trial, parameters))
        return (*found, *([refused(parameters, trial)] if parameters.lowered else []))

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pod without the limiter: it takes no notice."""

        def doubt(check: Check) -> str:
            less = isinstance(check.card, float) and check.card < SURELY_PCT
            return f"it had {check.card:.0f} % of an idle card only" if less else ""

        return control_of(self.checks(parameters, trial), doubt)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return the pod's share over time, and under it the limit of each moment."""
        made = make_chart(trial, control, compute={POD: float(parameters.shares[0])})
        sides = []
        for side, of in zip(made.sides, (trial, control), strict=False):
            assert of is not None
            caps = limits_over_time(parameters, of)
            panels = tuple(msgspec.structs.replace(p, caps=caps) for p in side.panels)
            sides.append(msgspec.structs.replace(side, panels=panels))
        return msgspec.structs.replace(made, sides=tuple(sides))


def limits_over_time(parameters: Parameters, trial: Trial) -> tuple[Cap, ...]:
    """Return what was asked for, from each change to the next, seconds since the trial began."""
    changes = trial.pods[POD].changes if POD in trial.pods else {}
    parts, found, begin = steps(parameters), [], None
    for step in parts:
        made = changes.get(step.phase)
        end = None if made is None else round(made.done - trial.started, 3)
        found.append(Cap(label=POD, value=float(step.share), begin=begin, end=end))
        if made is None:
            break
        begin = end
    return tuple(found)


# --- the checks --------------------------------------------------------------------
def _window(step: Step, trial: Trial, parameters: Parameters) -> tuple[float, float, str] | str:
    """Return from when to when a step's limit held, and the card; or why that is not known."""
    pod = trial.pods.get(POD)
    if pod is None:
        return "no pod"
    trace = pod.container("main")
    failure = trace.event("error")
    card = trace.event("working")
    end = trace.event("released", step.phase)
    if card is None or end is None or failure is not None:
        return unreached(pod)
    parts = steps(parameters)
    begun = trace.event("holding", step.phase)
    assert begun is not None
    begin = float(begun["time"])
    if step.before is not None:
        change = pod.changes.get(parts[step.number - 2].phase)
        if change is None:
            return "its limit was not changed"
        if change.why and trial.enforcement != "off":
            return f"its limit was not changed: {change.why}"
        begin = change.done
    following = pod.changes.get(step.phase)
    # Up to the moment at which the next change was asked for.
    last = following.asked if following else float(end["time"])
    return begin, last, str(card["uuid"])


def _judged(base: Check, step: Step, trial: Trial, start: float, end: float, uuid: str) -> Check:
    return judge_share(
        base,
        pod_share(trial, POD, uuid, start, end),
        word="limit",
        least=step.share - HOST_POINTS,
        unknown="the monitor told too little of its share",
    )


def _check(
    name: str, step: Step, trial: Trial, parameters: Parameters, points: float, seconds: float
) -> Check:
    # One kernel more or less fits any window.
    tolerance = round(points + parameters.kernel_us / 1e4 / seconds, 2)
    return Check(
        name=name,
        pod=POD,
        variant=step.variant,
        verdict="error",
        asked=float(step.share),
        tolerance=tolerance,
        unit="%",
        source=f"monitor ({trial.source})",
        control="fail",
    )


def followed(step: Step, trial: Trial, parameters: Parameters) -> Check:
    """Does the pod have what its limit says, once two seconds have passed?"""
    lasts = parameters.seconds - SETTLE_SECONDS
    base = _check("followed", step, trial, parameters, POINTS, lasts)
    window = _window(step, trial, parameters)
    if isinstance(window, str):
        return msgspec.structs.replace(base, reason=window)
    begin, end, uuid = window
    return _judged(base, step, trial, begin + SETTLE_SECONDS, end, uuid)


def settled(step: Step, trial: Trial, parameters: Parameters) -> Check:
    """Does it have that already in the first second after the two?"""
    base = _check("settled", step, trial, parameters, SECOND_POINTS, 1.0)
    window = _window(step, trial, parameters)
    if isinstance(window, str):
        return msgspec.structs.replace(base, reason=window)
    begin, _, uuid = window
    base = msgspec.structs.replace(base, source=f"{base.source}, 2 s after the change")
    start = begin + SETTLE_SECONDS
    return _judged(base, step, trial, start, start + SECOND, uuid)


def refused(parameters: Parameters, trial: Trial) -> Check:
    """Is new memory refused below what is held, and granted again after enough was freed?"""
    base = Check(
        name="refused",
        pod=POD,
        variant=f"memory: {parameters.gpumem} to {parameters.lowered} MiB",
        verdict="error",
        asked=float(parameters.lowered),
        tolerance=GRANULE_MIB,
        unit="MiB",
        source="workload",
        control="fail",
    )
    pod = trial.pods.get(POD)
    event = pod.container("main").event("lowered") if pod is not None else None
    change = pod.changes.get(MEMORY) if pod is not None else None
    if event is None or change is None:
        return msgspec.structs.replace(base, reason=unreached(pod))
    if change.why and trial.enforcement != "off":
        return msgspec.structs.replace(base, reason=f"its limit was not changed: {change.why}")
    total = event["total"] / MIB
    reasons: list[str] = []
    if event["granted"]:
        reasons.append("new memory was granted above the limit")
    if not event["kept"]:
        reasons.append("what it held was taken away")
    if not event["again"]:
        reasons.append("it got nothing even after it had freed enough")
    if abs(total - parameters.lowered) > GRANULE_MIB:
        reasons.append("it was told another size of its card")
    verdict: Literal["fail", "pass"] = "fail" if reasons else "pass"
    return msgspec.structs.replace(base, verdict=verdict, workload=total, reason=", ".join(reasons))


QUESTION = LimitStep()
