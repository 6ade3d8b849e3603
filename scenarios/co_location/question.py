"""Do two pods on one card keep their memory caps, side by side?

Pure: this module says which pods to run and judges what came of them. Two
independent observations meet in each check: what the workload measured in its pod,
and what the card counted for the pod (the monitor's samples).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from testbed.errors import CodecError, InputError
from testbed.lab.report.chart import Chart, make_chart
from testbed.lab.scenario.failure import last_error
from testbed.lab.scenario.question import PodPlan, PodTrace, Sample, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares
from testbed.units import MIB

#: The driver hands out memory in granules of this size, so a full container may
#: stop up to one granule below its cap (CUDA driver API, cuMemGetAllocationGranularity).
GRANULE_MIB = 2.0

REFUSED_EARLY = "refused too early"

ALLOCATORS = ("uncached", "native", "expandable_segments", "cudaMallocAsync")


class PodParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one pod asks for."""

    gpumem: int  # MiB
    gpu: int = 1
    gpucores: int = 0  # percent
    run_as_user: int | None = None  # None: the image's, which is root


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of a case."""

    pods: dict[str, PodParameters]
    allocators: tuple[str, ...] = ALLOCATORS
    #: Where the workload stops by itself, percent of its cap: only a run without a
    #: limiter gets there.
    ceiling_pct: int = 110
    #: How long a full pod waits to be released before it goes on alone.
    hold_seconds: float = 120.0


class CoLocation:
    """The question, as the testbed runs it."""

    name = "co_location"
    title = "Do pods on one card keep their memory caps, side by side?"
    parameters = Parameters
    asserts_limit = True

    def validate(self, parameters: Parameters) -> None:
        """Refuse what no cluster could run, before anything is started."""
        if not parameters.pods:
            raise InputError("the case has no pods", hint="name at least one below `pods:`")
        for name, pod in parameters.pods.items():
            if not re.fullmatch(r"[a-z0-9]{1,20}", name):
                raise InputError(
                    f"pod {name!r} has an unusable name", hint="use up to 20 letters a-z and digits"
                )
            if pod.gpu != 1:
                raise InputError(
                    f"pod {name}: gpu is {pod.gpu}",
                    why="the workload of this question uses one card",
                )
            if pod.gpumem < 1024:
                raise InputError(
                    f"pod {name}: gpumem is {pod.gpumem}",
                    why="PyTorch's context alone takes half a GiB",
                    hint="ask for 1024 (MiB) or more",
                )
            if not 0 <= pod.gpucores <= 100:
                raise InputError(f"pod {name}: gpucores is {pod.gpucores}", hint="use 0 to 100")
            if pod.run_as_user is not None and not 0 <= pod.run_as_user <= 65535:
                raise InputError(
                    f"pod {name}: run_as_user is {pod.run_as_user}", hint="use 0 to 65535"
                )
        unknown = set(parameters.allocators) - set(ALLOCATORS)
        if unknown or not parameters.allocators:
            raise InputError(
                f"unknown allocators: {', '.join(sorted(unknown)) or 'none given'}",
                hint="choose among " + ", ".join(ALLOCATORS),
            )
        if not 101 <= parameters.ceiling_pct <= 200:
            raise InputError(
                f"ceiling_pct is {parameters.ceiling_pct}",
                why="the ceiling must lie above the cap",
                hint="use 101 to 200",
            )
        if not 1 <= parameters.hold_seconds <= 600:
            raise InputError(f"hold_seconds is {parameters.hold_seconds}", hint="use 1 to 600")

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return one pod for each entry of ``pods``."""
        return tuple(
            PodPlan(
                name=name,
                limits={
                    names.RESOURCE_COUNT: str(pod.gpu),
                    names.RESOURCE_MEMORY: str(pod.gpumem),
                    **({names.RESOURCE_CORES: str(pod.gpucores)} if pod.gpucores else {}),
                },
                parameters={
                    "allocators": list(parameters.allocators),
                    "ceiling_mib": pod.gpumem * parameters.ceiling_pct // 100,
                    "hold_seconds": parameters.hold_seconds,
                },
                run_as_user=pod.run_as_user,
            )
            for name, pod in parameters.pods.items()
        )

    def checks(self, parameters: Parameters, trial: Trial) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        found: list[Check] = []
        for name, asked in parameters.pods.items():
            trace = trial.pods.get(name)
            if trace is None:
                found.append(Check(name="memory_cap", pod=name, verdict="error", reason="no pod"))
                continue
            allocators = parameters.allocators
            found += [memory_cap(asked, trace, allocator) for allocator in allocators]
            found += [card_bytes(asked, trace, allocator, trial) for allocator in allocators]
            found += [survives(asked, trace, allocator) for allocator in allocators]
            found.append(visible_size(asked, trace, parameters.allocators))
            found.append(annotations_agree(asked, trace, trial))
            found.append(
                Check(
                    name="share_card",
                    pod=name,
                    verdict="skipped",
                    asked=float(asked.gpucores),
                    unit="%",
                    reason="shares of compute are not enforced yet",
                )
            )
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without the limiter: they must pass their caps."""
        found: list[Check] = []
        for name, asked in parameters.pods.items():
            trace = trial.pods.get(name)
            if trace is None:
                found.append(Check(name="memory_cap", pod=name, verdict="error", reason="no pod"))
                continue
            allocators = parameters.allocators
            found += [memory_cap(asked, trace, allocator) for allocator in allocators]
            found += [card_bytes(asked, trace, allocator, trial) for allocator in allocators]
        return judge_control(found)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return what the card counted for each pod over time, with the caps."""
        memory = {name: float(pod.gpumem) for name, pod in parameters.pods.items()}
        return make_chart(trial, control, memory=memory)


def judge_control(found: Sequence[Check]) -> Control:
    """Return ``pass`` if every limit check failed with bytes above the cap."""
    reasons = []
    for check in found:
        if check.verdict == "error" or check.verdict == "skipped":
            reasons.append(f"{check.name} of {check.pod}: {check.verdict} ({check.reason})")
            continue
        figure = check.card if check.name == "card_bytes" else check.workload
        above = (
            isinstance(figure, float) and isinstance(check.asked, float) and figure > check.asked
        )
        if check.verdict != "fail" or not above:
            reason = f"{check.name} of {check.pod} did not pass its cap"
            if check.reason == REFUSED_EARLY:
                reason += ": the card was full before (ask for less of it, or lower ceiling_pct)"
            reasons.append(reason)
    if not found:
        reasons.append("the control checked nothing")
    return Control(
        verdict="error" if reasons else "pass",
        checks=tuple(found),
        reason="; ".join(dict.fromkeys(reasons)),
    )


def missing(name: str, trace: PodTrace, allocator: str, asked: PodParameters) -> Check:
    """Return the error of a check whose workload event never came."""
    failure = trace.event("error", allocator)
    if failure is None:
        why = trace.problem or "no such event"
    else:
        told = last_error(str(failure["text"])).splitlines()
        why = told[0] if told else f"its process ended with {failure['code']} and said nothing"
    return Check(
        name=name,
        pod=trace.name,
        variant=allocator,
        verdict="error",
        asked=float(asked.gpumem),
        unit="MiB",
        reason=f"the workload did not get there: {why}",
    )


def memory_cap(asked: PodParameters, trace: PodTrace, allocator: str) -> Check:
    """Does NVML in the pod count between cap - 2 MiB and cap when the pod is full?"""
    event = trace.event("holding", allocator)
    if event is None:
        return missing("memory_cap", trace, allocator, asked)
    used = event["bytes"] / MIB
    held = bool(event["refused"]) and asked.gpumem - GRANULE_MIB <= used <= asked.gpumem
    reason = ""
    if not event["refused"]:
        reason = "never refused: the workload stopped at its own ceiling"
    elif used > asked.gpumem:
        reason = "above the cap"
    elif not held:
        reason = REFUSED_EARLY
    return Check(
        name="memory_cap",
        pod=trace.name,
        variant=allocator,
        verdict="pass" if held else "fail",
        asked=float(asked.gpumem),
        workload=used,
        tolerance=GRANULE_MIB,
        unit="MiB",
        source="NVML in the pod",
        reason=reason,
    )


def ticks(samples: Iterable[Sample], uid: str, start: float, end: float) -> dict[float, int]:
    """Return the pod's bytes at each sampling time in an interval, summed over processes."""
    found: dict[float, int] = {}
    for sample in samples:
        if start <= sample.time <= end and sample.pod_uid == uid:
            found[sample.time] = found.get(sample.time, 0) + sample.bytes
    return found


def card_bytes(asked: PodParameters, trace: PodTrace, allocator: str, trial: Trial) -> Check:
    """Does the card count what the pod counts, and never more than the cap?"""
    holding, released = trace.event("holding", allocator), trace.event("released", allocator)
    if holding is None or released is None:
        return missing("card_bytes", trace, allocator, asked)
    base = Check(
        name="card_bytes",
        pod=trace.name,
        variant=allocator,
        verdict="error",
        asked=float(asked.gpumem),
        workload=holding["bytes"] / MIB,
        tolerance=GRANULE_MIB,
        unit="MiB",
        source=f"monitor ({trial.source})",
    )
    strangers = [s for s in trial.samples if s.pod_uid == "unknown" and s.bytes]
    if strangers:
        pids = ", ".join(sorted({str(s.pid) for s in strangers}))
        return msgspec.structs.replace(
            base, reason=f"processes of no pod were on the card (pid {pids})"
        )
    held = ticks(trial.samples, trace.uid, holding["time"], released["time"])
    if not held:
        return msgspec.structs.replace(base, reason="the monitor took no sample while it was full")
    start = visible["time"] if (visible := trace.event("visible", allocator)) else 0.0
    phase = ticks(trial.samples, trace.uid, start, released["time"])
    peak, low = max(phase.values()) / MIB, min(held.values()) / MIB
    own = holding["bytes"] / MIB
    reason = ""
    if peak > asked.gpumem:
        reason = "above the cap"
    elif max(abs(peak - own), abs(low - own)) > GRANULE_MIB:
        reason = "the card and the pod disagree"
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason else "pass",
        card=peak if peak > asked.gpumem or abs(peak - own) >= abs(low - own) else low,
        reason=reason,
    )


def visible_size(asked: PodParameters, trace: PodTrace, allocators: Sequence[str]) -> Check:
    """Do PyTorch, driver API and NVML all tell the cap as the card's size?"""
    sizes: dict[str, float] = {}
    for allocator in allocators:
        event = trace.event("visible", allocator)
        if event is None:
            return missing("visible_size", trace, allocator, asked)
        for source, value in event["sizes"].items():
            size = value / MIB
            if size != asked.gpumem or source not in sizes:
                sizes[source] = size
    wrong = {source: size for source, size in sizes.items() if size != asked.gpumem}
    return Check(
        name="visible_size",
        pod=trace.name,
        verdict="fail" if wrong else "pass",
        asked=float(asked.gpumem),
        workload=next(iter(wrong.values()), float(asked.gpumem)),
        tolerance=0.0,
        unit="MiB",
        source=", ".join(sizes),
        reason=", ".join(f"{source} tells {size:,.0f}" for source, size in wrong.items()),
    )


def survives(asked: PodParameters, trace: PodTrace, allocator: str) -> Check:
    """After the refusal: freed, allocated again, 64 MiB there and back equal?"""
    event = trace.event("survived", allocator)
    if event is None:
        return missing("survives", trace, allocator, asked)
    reasons = []
    if not event["equal"]:
        reasons.append("64 MiB came back different")
    if event["again"] < event["freed_to"] + 256 * MIB:
        reasons.append("a new allocation was not counted")
    holding = trace.event("holding", allocator)
    if holding is not None and event["freed_to"] >= holding["bytes"]:
        reasons.append("nothing was given back")
    return Check(
        name="survives",
        pod=trace.name,
        variant=allocator,
        verdict="fail" if reasons else "pass",
        workload=event["freed_to"] / MIB,
        unit="MiB",
        source="workload",
        reason=", ".join(reasons),
    )


def annotations_agree(asked: PodParameters, trace: PodTrace, trial: Trial) -> Check:
    """Do pod, ledger and node tell the same story, in the contract's words?"""
    base = Check(
        name="annotations",
        pod=trace.name,
        verdict="fail",
        asked=f"1 card, {asked.gpumem} MiB, {asked.gpucores} %",
        source="pod, extender's ledger, node",
    )
    notes: Mapping[str, str] = trace.object.get("metadata", {}).get("annotations", {})
    reasons: list[str] = []
    try:
        shares = decode_pod_shares(notes.get(names.POD_ALLOCATED, ""))
        waiting = decode_pod_shares(notes.get(names.POD_TO_ALLOCATE, ""))
    except CodecError as error:
        return msgspec.structs.replace(base, reason=str(error))
    devices = [share for container in shares for share in container]
    if len(devices) != 1:
        reasons.append(f"{len(devices)} devices in {names.POD_ALLOCATED}")
    else:
        share = devices[0]
        if (share.mem_mib, share.core_pct) != (asked.gpumem, asked.gpucores):
            reasons.append(f"promised {share.mem_mib} MiB, {share.core_pct} %")
        cards = {card.uuid for card in trial.registered.get(trace.node, ())}
        if share.uuid not in cards:
            reasons.append(f"{share.uuid} is not registered on {trace.node}")
        seen = {event["uuid"] for event in trace.events if event["event"] == "visible"}
        if seen != {share.uuid}:
            reasons.append(f"the pod saw {', '.join(sorted(seen)) or 'no card'}, not {share.uuid}")
        booked = trial.ledger.get("pods", {}).get(trace.uid)
        if booked is None:
            reasons.append("the extender's ledger does not know the pod")
        elif booked != notes.get(names.POD_ALLOCATED):
            reasons.append(f"the ledger says {booked}")
    if any(waiting):
        reasons.append(f"{names.POD_TO_ALLOCATE} is not used up")
    if notes.get(names.POD_BIND_PHASE) != names.PHASE_SUCCESS:
        reasons.append(f"bind-phase is {notes.get(names.POD_BIND_PHASE)!r}")
    if notes.get(names.POD_NODE) != trace.node:
        reasons.append(f"{names.POD_NODE} is {notes.get(names.POD_NODE)!r}, not {trace.node}")
    return msgspec.structs.replace(
        base,
        verdict="fail" if reasons else "pass",
        workload=notes.get(names.POD_ALLOCATED, ""),
        reason="; ".join(reasons),
    )


QUESTION = CoLocation()
