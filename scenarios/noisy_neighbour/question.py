"""Does a pod notice what its neighbour on the card does?

Pure: says which pods to run and judges what the watched one had of the card, alone and
beside each kind of neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Chart, make_chart
from testbed.lab.scenario.control import control_of
from testbed.lab.scenario.failure import last_error
from testbed.lab.scenario.question import ContainerPlan, OneCard, PodPlan, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.shares import pod_share, step_rate
from testbed.stack import names

VICTIM, NEIGHBOUR, ALONE = "victim", "neighbour", "alone"
KINDS = ("storm", "long", "memory", "churn", "crash")
#: Kinds that keep the card busy: without a limiter they have half of it.
GREEDY = ("storm", "long")
#: Percentage points.
SHARE_POINTS = 2.0
#: How much slower the victim's work may be than alone.
SLOWDOWN = 1.1
#: After the neighbour begins: until shares are as promised.
SETTLE_SECONDS = 3.0
ALONE_SETTLE_SECONDS = 1.0
#: What the victim takes and frees meanwhile, MiB.
PROBE_MIB = 2048

MEANINGS = {
    "share_card": "The card grants the victim the share of its time that it asked for, alone and"
    " beside each kind of neighbour.",
    "slowdown": "The victim's work goes on as fast as alone, at most 1.1 times slower.",
    "memory_kept": "What the victim's cap allows is never refused to it, whatever its neighbour"
    " holds.",
}


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a pod asks for."""

    gpumem: int
    gpucores: int


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    victim: Asked = Asked(gpumem=8192, gpucores=30)
    neighbour: Asked = Asked(gpumem=20480, gpucores=50)
    kinds: tuple[Literal["storm", "long", "memory", "churn", "crash"], ...] = KINDS
    #: How long the victim is measured beside each kind, after it has settled.
    seconds: float = 6.0
    #: How long a pod waits to be released before it goes on alone.
    hold_seconds: float = 200.0


class NoisyNeighbour(OneCard):
    """The question, as the testbed runs it."""

    name = "noisy_neighbour"
    title = "Does a pod notice what its neighbour on the card does?"
    parameters = Parameters
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def validate(self, parameters: Parameters) -> None:
        """Refuse what cannot run, or what no control could tell."""
        if not parameters.kinds or len(set(parameters.kinds)) < len(parameters.kinds):
            raise InputError(f"kinds are {list(parameters.kinds)}", hint="name each once")
        if parameters.victim.gpumem < PROBE_MIB + 2048:
            raise InputError(
                f"victim: gpumem is {parameters.victim.gpumem}",
                why=f"it takes {PROBE_MIB} MiB and PyTorch's context some hundred",
                hint=f"use {PROBE_MIB + 2048} or more",
            )
        if not 5 <= parameters.victim.gpucores <= 35:
            raise InputError(
                f"victim: gpucores is {parameters.victim.gpucores}",
                why="beside a greedy neighbour it has 46 % without the limiter too",
                hint="use 5 to 35",
            )
        if not 5 <= parameters.neighbour.gpucores <= 90 - parameters.victim.gpucores:
            raise InputError(
                f"neighbour: gpucores is {parameters.neighbour.gpucores}",
                why="both must have their share at once, and switching between them takes a part",
                hint="use 5 to 90 together",
            )
        if parameters.neighbour.gpumem < 2048:
            raise InputError(
                f"neighbour: gpumem is {parameters.neighbour.gpumem}", hint="use 2048 or more"
            )
        if not 4 <= parameters.seconds <= 120 or not 1 <= parameters.hold_seconds <= 600:
            raise InputError(
                f"seconds is {parameters.seconds:g}, hold_seconds {parameters.hold_seconds:g}",
                hint="use 4 to 120, 1 to 600",
            )

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return victim and neighbour."""
        beside = [
            {"name": kind, "index": number, "seconds": SETTLE_SECONDS + parameters.seconds}
            for number, kind in enumerate(parameters.kinds, 1)
        ]
        alone = {"name": ALONE, "index": 0, "seconds": ALONE_SETTLE_SECONDS + parameters.seconds}
        return (
            _pod(VICTIM, parameters.victim, parameters, [alone, *beside], ()),
            _pod(NEIGHBOUR, parameters.neighbour, parameters, beside, ("passer_by.py",)),
        )

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        del control
        found = [share_card(parameters, trial, ALONE)]
        for kind in parameters.kinds:
            found += [
                share_card(parameters, trial, kind),
                slowdown(trial, kind),
                memory_kept(trial, kind),
            ]
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without the limiter: the victim must notice."""
        return control_of(self.checks(parameters, trial))

    def comparison(
        self, parameters: Parameters, trial: Trial, control: Trial | None
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the slow-down matrix: a row a kind of neighbour, with and without the limiter."""
        sides = [side for side in (trial, control) if side is not None]
        whose = ("with the limiter", "without")[: len(sides)]
        what = ("Its share", "Slower", "Refusals", "Neighbour's share")
        header = [f"{each}, {who}" for each in what for who in whose]
        rows = []
        for kind in (ALONE, *parameters.kinds):
            beside = kind != ALONE
            found: list[tuple[object, str]] = []
            found += [(share_card(parameters, side, kind).card, "{:.1f} %") for side in sides]
            found += [
                (slowdown(side, kind).workload if beside else 1.0, "{:.2f} x") for side in sides
            ]
            found += [(memory_kept(side, kind).workload, "{:.0f}") for side in sides]
            found += [
                (_share(side, kind, NEIGHBOUR) if beside else "-", "{:.1f} %") for side in sides
            ]
            cells = [
                form.format(each) if isinstance(each, float) else str(each or "?")
                for each, form in found
            ]
            rows.append([kind, *cells])
        return ("Neighbour", *header), rows

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return both pods' memory and share over time."""
        asked = {VICTIM: parameters.victim, NEIGHBOUR: parameters.neighbour}
        return make_chart(
            trial,
            control,
            memory={name: float(each.gpumem) for name, each in asked.items()},
            compute={name: float(each.gpucores) for name, each in asked.items()},
        )


def _pod(
    name: str,
    asked: Asked,
    parameters: Parameters,
    phases: Sequence[Mapping[str, object]],
    files: tuple[str, ...],
) -> PodPlan:
    return PodPlan(
        name=name,
        containers=(
            ContainerPlan(
                limits={
                    names.RESOURCE_COUNT: "1",
                    names.RESOURCE_MEMORY: str(asked.gpumem),
                    names.RESOURCE_CORES: str(asked.gpucores),
                },
                env={names.ENV_CORE_POLICY: "force"},
                workload=f"{name}.py",
                parameters={
                    "hold_seconds": parameters.hold_seconds,
                    "phases": list(phases),
                    "probe_mib": PROBE_MIB,
                },
            ),
        ),
        files=("facts.py", "spin.py", *files),
        annotations={names.CARD_POLICY: "binpack"},
    )


# --- the checks --------------------------------------------------------------------
def _window(trial: Trial, phase: str) -> tuple[float, float, str] | None:
    """Return begin and end of what is measured of a phase, and the victim's card."""
    begins, ends, uuids = [], [], []
    for name in (VICTIM,) if phase == ALONE else (VICTIM, NEIGHBOUR):
        if name not in trial.pods:
            return None
        trace = trial.pods[name].container("main")
        card = trace.event("working")
        begin, end = trace.event("released", phase), trace.event("worked", phase)
        if card is None or begin is None or end is None:
            return None
        begins.append(float(begin["time"]))
        ends.append(float(end["time"]))
        uuids.append(str(card["uuid"]))
    if len(set(uuids)) > 1:
        return None
    settle = ALONE_SETTLE_SECONDS if phase == ALONE else SETTLE_SECONDS
    return max(begins) + settle, min(ends), uuids[0]


def _missing(trial: Trial) -> str:
    """Return why nothing can be said of a phase."""
    cards = set()
    for name in (VICTIM, NEIGHBOUR):
        if name not in trial.pods:
            return f"no pod {name}"
        trace = trial.pods[name].container("main")
        cards |= {event["uuid"] for event in trace.events if event["event"] == "working"}
        failure = trace.event("error")
        told = last_error(str(failure["text"])) if failure else trace.problem
        if told:
            return f"{name} did not get there: {told}"
    return "the pods lie on different cards" if len(cards) > 1 else "too little was told"


def _share(trial: Trial, phase: str, pod: str) -> float | None:
    """Return a pod's share of the card in what is measured of a phase, percent."""
    window = _window(trial, phase)
    if window is None:
        return None
    begin, end, uuid = window
    found = pod_share(trial, pod, uuid, begin, end)
    return None if found is None else found.pct


def share_card(parameters: Parameters, trial: Trial, phase: str) -> Check:
    """Has the victim its share of the card's time?"""
    asked = float(parameters.victim.gpucores)
    base = Check(
        name="share_card",
        pod=VICTIM,
        variant=phase,
        verdict="error",
        asked=asked,
        tolerance=SHARE_POINTS,
        unit="%",
        source=f"monitor ({trial.source})",
        control="fail",
    )
    share = _share(trial, phase, VICTIM)
    if share is None:
        return msgspec.structs.replace(base, reason=_missing(trial))
    reason = ""
    if share > asked + SHARE_POINTS:
        reason = "more than its share"
    elif share < asked - SHARE_POINTS:
        reason = "less than its share"
    return msgspec.structs.replace(
        base, verdict="fail" if reason else "pass", card=round(share, 2), reason=reason
    )


def slowdown(trial: Trial, kind: str) -> Check:
    """How much slower is the victim than alone?"""
    base = Check(
        name="slowdown",
        pod=VICTIM,
        variant=kind,
        verdict="error",
        asked=1.0,
        tolerance=round(SLOWDOWN - 1, 2),
        unit="x",
        source="workload",
        control="fail" if kind in GREEDY else "any",
    )
    rates = []
    for phase in (ALONE, kind):
        window = _window(trial, phase)
        if window is None:
            return msgspec.structs.replace(base, reason=_missing(trial))
        begin, end, uuid = window
        events = trial.pods[VICTIM].container("main").events
        told = [event for event in events if event.get("phase") == phase]
        rate = step_rate(told, uuid=uuid, start=begin, end=end)
        if not rate:
            return msgspec.structs.replace(base, reason=f"too few steps were told ({phase})")
        rates.append(rate)
    factor = rates[0] / rates[1]
    return msgspec.structs.replace(
        base,
        verdict="pass" if factor <= SLOWDOWN else "fail",
        workload=round(factor, 2),
        source=f"workload, {rates[1]:.1f} of {rates[0]:.1f} steps/s",
        reason="" if factor <= SLOWDOWN else "slower than alone",
    )


def memory_kept(trial: Trial, kind: str) -> Check:
    """Was memory within its cap refused to the victim?"""
    base = Check(
        name="memory_kept",
        pod=VICTIM,
        variant=kind,
        verdict="error",
        asked=0.0,
        tolerance=0.0,
        unit="refusals",
        source="workload",
        control="fail" if kind == "memory" else "any",
    )
    trace = trial.pods[VICTIM].container("main") if VICTIM in trial.pods else None
    event = trace.event("worked", kind) if trace else None
    if event is None:
        return msgspec.structs.replace(base, reason=_missing(trial))
    refused, asked = int(event["refused"]), int(event["asked"])
    if not asked:
        return msgspec.structs.replace(base, reason="it never asked for memory")
    return msgspec.structs.replace(
        base,
        verdict="fail" if refused else "pass",
        workload=float(refused),
        source=f"workload, {asked} times asked",
        reason="its neighbour had taken it" if refused else "",
    )


QUESTION = NoisyNeighbour()
