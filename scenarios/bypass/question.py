"""Can a pod get round its limit, and if so, is it seen?

Pure: one pod a way; says what the card counted for each and what the monitor said.
"""

from __future__ import annotations

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

#: Ways that are stopped, and ways that nothing in user space can stop.
STOPPED = (
    *("disable_variable", "limit_variable", "empty_environment", "other_preload"),
    *("driver_preload", "deepbind"),
)
OPEN = ("own_loader", "driver_copy", "own_lookup")
PHASE = "taken"
#: Sampling times of the monitor (a quarter of a second) after which an open way must be shown.
TICKS = 16
#: What a pod tries to have, percent of its cap.
CEILING_PCT = 150

ABOVE = "above the cap"

#: What a pod does in each way.
DOES = {
    "disable_variable": "sets CUDA_DISABLE_CONTROL=true in its own environment",
    "limit_variable": "sets CUDA_DEVICE_MEMORY_LIMIT to more",
    "empty_environment": "starts its program with an empty environment",
    "other_preload": "starts it with an LD_PRELOAD of its own",
    "driver_preload": "preloads the driver itself, before the library",
    "deepbind": "loads the driver with RTLD_DEEPBIND",
    "own_loader": "starts its program by a loader that preloads nothing",
    "driver_copy": "loads a copy of the driver under another name, in a namespace of its own",
    "own_lookup": "asks the C library's own dlsym for the function that allocates",
}

MEANINGS = {
    "stopped": "A pod that tries to get round its cap this way has no more than it all the same.",
    "shown": "This way is open, as documented, and the monitor calls the container unenforced"
    " some seconds later.",
}


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    ways: tuple[
        Literal[
            "disable_variable",
            "limit_variable",
            "empty_environment",
            "other_preload",
            "driver_preload",
            "deepbind",
            "own_loader",
            "driver_copy",
            "own_lookup",
        ],
        ...,
    ] = (*STOPPED, *OPEN)  # type: ignore[assignment]  # the same words
    #: Every pod's cap, MiB.
    gpumem: int = 4096
    #: How long a pod waits to be released before it goes on alone.
    hold_seconds: float = 60.0


def pod_name(way: str) -> str:
    return way.replace("_", "-")


class Bypass(OneCard):
    """The question, as the testbed runs it."""

    name = "bypass"
    title = "Can a pod get round its limit, and if so, is it seen?"
    parameters = Parameters
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def validate(self, parameters: Parameters) -> None:
        """Refuse what cannot run, or what no control could tell."""
        if not set(parameters.ways) & set(STOPPED):
            raise InputError(
                "no way is to be stopped",
                why="then the control has nothing to show",
                hint="name one of " + ", ".join(STOPPED),
            )
        if len(set(parameters.ways)) < len(parameters.ways):
            raise InputError(f"ways are {list(parameters.ways)}", hint="name each once")
        if not 1024 <= parameters.gpumem <= 8192 or not 10 <= parameters.hold_seconds <= 600:
            raise InputError(
                f"gpumem is {parameters.gpumem}, hold_seconds {parameters.hold_seconds:g}",
                hint="use 1024 to 8192, 10 to 600",
            )

    def rows(self, parameters: Parameters) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what the pods do and what is to become of it, as a table."""
        becomes = {True: "stopped", False: "open: has to be shown"}
        rows = [
            (pod_name(way), f"{parameters.gpumem:,} MiB", DOES[way], becomes[way in STOPPED])
            for way in parameters.ways
        ]
        return ("Pod", "Cap", "What it does", "Expected"), rows

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return one pod for each way."""
        return tuple(
            PodPlan(
                name=pod_name(way),
                containers=(
                    ContainerPlan(
                        limits={
                            names.RESOURCE_COUNT: "1",
                            names.RESOURCE_MEMORY: str(parameters.gpumem),
                        },
                        env=_own_environment(way, parameters.gpumem),
                        parameters={
                            "way": way,
                            "ceiling_mib": parameters.gpumem * CEILING_PCT // 100,
                            "ticks": TICKS,
                            "hold_seconds": parameters.hold_seconds,
                        },
                    ),
                ),
                files=("facts.py", "take.py"),
                annotations={names.CARD_POLICY: "binpack"},
            )
            for way in parameters.ways
        )

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        del control
        return tuple(
            stopped(parameters, trial, way) if way in STOPPED else shown(parameters, trial, way)
            for way in parameters.ways
        )

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without the limiter: nothing stops them, whichever way they go."""
        found = control_of(
            self.checks(parameters, trial),
            lambda check: "" if check.reason == ABOVE else check.reason,
        )
        # What the monitor says of them is no matter; but who cannot pass his cap even here goes
        # no way at all, and his way would be called open, or closed, for nothing.
        idle = [
            f"shown of {pod_name(way)}: it did not pass its cap without the limiter either"
            for way in parameters.ways
            if way in OPEN
            and isinstance(counted := _counted(trial, way), float)
            and counted <= parameters.gpumem
        ]
        if not idle:
            return found
        reason = "; ".join(filter(None, (found.reason, *idle)))
        return msgspec.structs.replace(found, verdict="error", reason=reason)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return each pod's memory over time."""
        caps = {pod_name(way): float(parameters.gpumem) for way in parameters.ways}
        return make_chart(trial, control, memory=caps)


def _own_environment(way: str, cap_mib: int) -> dict[str, str]:
    """Return what the pod's author sets."""
    if way == "disable_variable":
        return {names.ENV_DISABLE_CONTROL: "true"}
    if way == "limit_variable":
        more = f"{cap_mib * 10}m"
        return {names.ENV_MEMORY_LIMIT: more, f"{names.ENV_MEMORY_LIMIT}_0": more}
    return {}


def _counted(trial: Trial, way: str) -> float | str:
    """Return the most that the card counted for a pod, MiB, or why that is not known."""
    pod = trial.pods.get(pod_name(way))
    if pod is None:
        return "no pod"
    trace = pod.container("main")
    end = trace.event("released", PHASE)
    if trace.event("taken") is None or end is None:
        return unreached(pod)
    sums: dict[float, int] = {}
    for sample in trial.samples:
        if sample.pod_uid == pod.uid and sample.time <= end["time"]:
            sums[sample.time] = sums.get(sample.time, 0) + sample.bytes
    return max(sums.values()) / MIB if any(sums.values()) else "the card counted nothing of it"


def stopped(parameters: Parameters, trial: Trial, way: str) -> Check:
    """Is the cap kept whatever the pod tries?"""
    base = Check(
        name="stopped",
        pod=pod_name(way),
        verdict="error",
        asked=float(parameters.gpumem),
        tolerance=0.0,
        unit="MiB",
        source=f"monitor ({trial.source})",
        control="fail",
    )
    counted = _counted(trial, way)
    if isinstance(counted, str):
        return msgspec.structs.replace(base, reason=counted)
    # Who did not come near his cap did not try.
    low = counted < parameters.gpumem * 0.9
    reason = ABOVE if counted > parameters.gpumem else ""
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason or low else "pass",
        card=counted,
        reason=reason or ("it did not take what it may have" if low else ""),
    )


def shown(parameters: Parameters, trial: Trial, way: str) -> Check:
    """Is a way that is open called so?"""
    base = Check(
        name="shown",
        pod=pod_name(way),
        verdict="error",
        asked="unenforced",
        source="monitor",
        control="any",
    )
    counted = _counted(trial, way)
    if isinstance(counted, str):
        return msgspec.structs.replace(base, reason=counted)
    trace = trial.pods[pod_name(way)].container("main")
    full, seen = trace.event("holding", PHASE), trace.event("released", PHASE)
    if full is not None and seen is not None:
        source = f"monitor, at most {seen['time'] - full['time']:.1f} s after it was full"
        base = msgspec.structs.replace(base, source=source)
    said = trial.unenforced.get((trial.pods[pod_name(way)].uid, "main"), "")
    reason = ""
    if counted <= parameters.gpumem:
        reason = "said to be open, and its cap held: the documentation is out of date"
    elif not said:
        reason = "nobody said that its limits are not held"
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason else "pass",
        card=said or "nothing",
        workload=f"{counted:,.0f} of {parameters.gpumem:,} MiB",
        reason=reason,
    )


QUESTION = Bypass()
