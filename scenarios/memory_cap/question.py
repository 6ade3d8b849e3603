"""Does a memory cap hold, whoever allocates and however?

Pure: says which pods to run and judges what they told and what the card counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Chart, make_chart
from testbed.lab.scenario.control import control_of
from testbed.lab.scenario.failure import unreached
from testbed.lab.scenario.question import ContainerPlan, OneCard, PodPlan, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.stack import names
from testbed.units import MIB

RACE, GROWTH, MODEL = "race", "growth", "model"
ALLOCATORS = ("native", "expandable_segments", "cudaMallocAsync")
#: The driver hands out memory in granules of this size (CUDA driver API,
#: cuMemGetAllocationGranularity).
GRANULE_MIB = 2.0
#: What a process holds before it allocates: its context (A100: 424 MiB, measured by NVML on
#: the emulated card) and a little.
CONTEXT_MIB = 512

MEANINGS = {
    "filled": "All processes of a pod together end at its cap when they allocate until they are"
    " refused: not above it, and at most one granule below.",
    "card_bytes": "The card counts the same for the pod, and never more than its cap.",
    "growth": "A program that grows and frees below its cap is never refused, and what it frees"
    " comes back.",
    "model_fits": "A model that just fits its pod's cap is loaded.",
    "model_refused": "A model of one layer more is refused with PyTorch's out-of-memory error, and"
    " the program goes on.",
}


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    #: Pod to cap, MiB.
    pods: dict[str, int]
    allocators: tuple[Literal["native", "expandable_segments", "cudaMallocAsync"], ...] = ALLOCATORS
    #: How many processes race in each pod; 0: none.
    processes: int = 8
    #: How often they race: fill the memory at once until all are refused, and free it.
    rounds: int = 1
    growth_rounds: int = 6
    models: bool = True
    #: Where a part stops by itself, percent of the cap: only a run without a limiter gets there.
    ceiling_pct: int = 115
    #: How long a pod waits to be released before it goes on alone.
    hold_seconds: float = 120.0

    @property
    def phases(self) -> tuple[str, ...]:
        """The parts in their order."""
        found = [*self.allocators]
        found += [RACE] if self.processes else []
        found += [GROWTH] if self.growth_rounds else []
        return (*found, *([MODEL] if self.models else []))


class MemoryCap(OneCard):
    """The question, as the testbed runs it."""

    name = "memory_cap"
    title = "Does a memory cap hold, whoever allocates and however?"
    parameters = Parameters
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def validate(self, parameters: Parameters) -> None:
        """Refuse what cannot run, or what no control could tell."""
        if not 1 <= len(parameters.pods) <= 8:
            raise InputError(f"{len(parameters.pods)} pods", hint="name one to eight")
        for name in parameters.pods:
            if not re.fullmatch(r"[a-z0-9]{1,20}", name):
                raise InputError(
                    f"pod {name!r} has an unusable name", hint="use up to 20 letters a-z and digits"
                )
        if not 0 <= parameters.processes <= 64 or not 0 <= parameters.growth_rounds <= 1000:
            raise InputError(
                f"{parameters.processes} processes, {parameters.growth_rounds} rounds",
                hint="use 0 to 64, 0 to 1000",
            )
        if not 1 <= parameters.rounds <= 10_000:
            raise InputError(f"rounds is {parameters.rounds}", hint="use 1 to 10000")
        if not parameters.allocators and not parameters.processes:
            raise InputError(
                "nothing passes a cap in the control", hint="name allocators, or processes"
            )
        least = max(2048, CONTEXT_MIB * max(1, parameters.processes) * 3 // 2)
        for name, cap in parameters.pods.items():
            if cap < least:
                raise InputError(
                    f"pod {name}: the cap is {cap}",
                    why="each process needs a context of some hundred MiB",
                    hint=f"use {least} (MiB) or more",
                )
        if not 105 <= parameters.ceiling_pct <= 200 or not 1 <= parameters.hold_seconds <= 600:
            raise InputError(
                f"ceiling_pct is {parameters.ceiling_pct},"
                f" hold_seconds {parameters.hold_seconds:g}",
                hint="use 105 to 200, 1 to 600",
            )

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return one pod for each cap."""
        return tuple(
            PodPlan(
                name=name,
                containers=(
                    ContainerPlan(
                        limits={names.RESOURCE_COUNT: "1", names.RESOURCE_MEMORY: str(cap)},
                        parameters={
                            "cap_mib": cap,
                            "phases": list(parameters.phases),
                            "processes": parameters.processes,
                            "rounds": parameters.rounds,
                            "growth_rounds": parameters.growth_rounds,
                            "ceiling_pct": parameters.ceiling_pct,
                            "hold_seconds": parameters.hold_seconds,
                        },
                    ),
                ),
                files=("facts.py", "parts.py", "racer.py"),
                annotations={names.CARD_POLICY: "binpack"},
            )
            for name, cap in parameters.pods.items()
        )

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        del control
        found: list[Check] = []
        for pod, cap in parameters.pods.items():
            for phase in parameters.phases:
                if phase in (*ALLOCATORS, RACE):
                    found += [filled(trial, pod, cap, phase), card_bytes(trial, pod, cap, phase)]
                elif phase == GROWTH:
                    found.append(growth(trial, pod, cap))
                else:
                    found += models(trial, pod, cap)
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without the limiter: they must pass their caps."""

        def doubt(check: Check) -> str:
            passed = check.name == "model_refused" or _above(check)
            return "" if passed else "the card was full before its cap was passed"

        return control_of(self.checks(parameters, trial), doubt)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return each pod's memory over time."""
        return make_chart(
            trial, control, memory={name: float(cap) for name, cap in parameters.pods.items()}
        )


# --- the checks --------------------------------------------------------------------
def _above(check: Check) -> bool:
    figure = check.card if check.name == "card_bytes" else check.workload
    return isinstance(figure, float) and isinstance(check.asked, float) and figure > check.asked


def _base(name: str, pod: str, cap: int, variant: str, *, control: Literal["fail", "any"]) -> Check:
    return Check(
        name=name,
        pod=pod,
        variant=variant,
        verdict="error",
        asked=float(cap),
        tolerance=GRANULE_MIB,
        unit="MiB",
        source="workload",
        control=control,
    )


def _missing(trial: Trial, pod: str, phase: str) -> str:
    return unreached(trial.pods.get(pod), phase)


def filled(trial: Trial, pod: str, cap: int, phase: str) -> Check:
    """Did all processes together get what the pod asked for, and no more?"""
    base = _base("filled", pod, cap, phase, control="fail")
    event = trial.pods[pod].container("main").event("filled", phase) if pod in trial.pods else None
    if event is None:
        return msgspec.structs.replace(base, reason=_missing(trial, pod, phase))
    # Of several rounds the worst: one above the cap, else the least.
    most, least = event.get("most", event["bytes"]) / MIB, event.get("least", event["bytes"]) / MIB
    reason = ""
    if most > cap:
        reason = "above the cap"
    elif least < cap - GRANULE_MIB:
        reason = "refused too early"
    count, rounds = int(event["processes"]), int(event.get("rounds", 1))
    source = f"workload, {count} process{'' if count == 1 else 'es'}"
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason else "pass",
        workload=most if most > cap else least,
        source=source + (f", {rounds} rounds" if rounds > 1 else ""),
        reason=reason,
    )


def card_bytes(trial: Trial, pod: str, cap: int, phase: str) -> Check:
    """Does the card count what the pod counts, and never more than the cap?"""
    base = _base("card_bytes", pod, cap, phase, control="fail")
    base = msgspec.structs.replace(base, source=f"monitor ({trial.source})")
    trace = trial.pods[pod].container("main") if pod in trial.pods else None
    told = trace.event("filled", phase) if trace else None
    begin = trace.event("holding", phase) if trace else None
    end = trace.event("released", phase) if trace else None
    if told is None or begin is None or end is None:
        return msgspec.structs.replace(base, reason=_missing(trial, pod, phase))
    sums: dict[float, int] = {}
    for sample in trial.samples:
        # The parts before as well: the cap holds at every moment.
        if sample.pod_uid == trial.pods[pod].uid and sample.time <= end["time"]:
            sums[sample.time] = sums.get(sample.time, 0) + sample.bytes
    # A tick's time is when it was stored: the first may have been read while it filled still.
    held = [sums[time] for time in sorted(sums) if begin["time"] <= time][1:]
    if not held:
        return msgspec.structs.replace(base, reason="the monitor took no sample while it was full")
    peak, low, said = max(sums.values()) / MIB, min(held) / MIB, told["bytes"] / MIB
    reason = ""
    if peak > cap:
        reason = "above the cap"
    elif max(abs(max(held) / MIB - said), abs(low - said)) > GRANULE_MIB:
        reason = "the card and the pod disagree"
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason else "pass",
        workload=said,
        card=peak if peak > cap else low,
        reason=reason,
    )


def growth(trial: Trial, pod: str, cap: int) -> Check:
    """Was nothing below the cap refused, and did all come back?"""
    base = _base("growth", pod, cap, GROWTH, control="any")
    event = trial.pods[pod].container("main").event("grown") if pod in trial.pods else None
    if event is None:
        return msgspec.structs.replace(base, reason=_missing(trial, pod, GROWTH))
    reasons = []
    if event["refused"]:
        reasons.append(f"{event['refused']} refusals below the cap")
    if event["after"] - event["before"] > GRANULE_MIB * MIB:
        reasons.append(f"{(event['after'] - event['before']) // MIB} MiB did not come back")
    if event["peak"] < cap * MIB * 8 // 10:
        reasons.append("it did not grow")
    return msgspec.structs.replace(
        base,
        verdict="fail" if reasons else "pass",
        workload=event["peak"] / MIB,
        reason=", ".join(reasons),
    )


def models(trial: Trial, pod: str, cap: int) -> list[Check]:
    """Is the model that just fits loaded, and the one of a layer more refused?"""
    found = []
    for name, more in (("model_fits", False), ("model_refused", True)):
        base = _base(name, pod, cap, MODEL, control="fail" if more else "any")
        trace = trial.pods[pod].container("main") if pod in trial.pods else None
        event = trace.event("model", more=more) if trace else None
        if event is None:
            found.append(msgspec.structs.replace(base, reason=_missing(trial, pod, MODEL)))
            continue
        reason = ""
        if more and not event["error"]:
            reason = "it was loaded"
        elif not more and event["error"]:
            reason = f"it was refused ({event['error']})"
        found.append(
            msgspec.structs.replace(
                base,
                verdict="fail" if reason else "pass",
                workload=event["bytes"] / MIB,
                source=f"workload, {event['layers']} layers",
                reason=reason,
            )
        )
    return found


QUESTION = MemoryCap()
