"""Checks of memory caps (pure): what a pod could allocate, and what the card counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from testbed.errors import CodecError
from testbed.lab.scenario.question import PodTrace, Sample, Trial
from testbed.lab.scenario.record import Check
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares
from testbed.units import MIB

from .tenants import PodParameters, Tenant, missing, named_cards, strangers, variant

#: The driver hands out memory in granules of this size, so a full container may
#: stop up to one granule below its cap (CUDA driver API, cuMemGetAllocationGranularity).
GRANULE_MIB = 2.0

REFUSED_EARLY = "refused too early"


def limit_checks(tenant: Tenant, allocators: Sequence[str], trial: Trial) -> list[Check]:
    """Return the checks of a tenant's cap, which must fail without the limiter."""
    cards = named_cards(tenant.cards(trial))
    ways = [(allocator, uuid, card) for allocator in allocators for uuid, card in cards]
    return [
        *(memory_cap(tenant, trial, *way) for way in ways),
        *(card_bytes(tenant, trial, *way) for way in ways),
    ]


def rule_checks(tenant: Tenant, allocators: Sequence[str], trial: Trial) -> list[Check]:
    """Return what else must hold of a tenant's memory."""
    found = [
        survives(tenant, trial, allocator, uuid, card)
        for allocator in allocators
        for uuid, card in named_cards(tenant.cards(trial))
    ]
    return [*found, visible_size(tenant, trial, allocators)]


def memory_cap(tenant: Tenant, trial: Trial, allocator: str, uuid: str, card: str) -> Check:
    """Did the pod get what it asked for, and no more, as it measured itself?"""
    trace = tenant.trace(trial)
    cap = tenant.asked.gpumem or 0
    base = Check(
        name="memory_cap",
        pod=tenant.label,
        variant=variant(allocator, card),
        verdict="fail",
        asked=float(cap),
        tolerance=GRANULE_MIB,
        unit="MiB",
        source="workload",
        control="fail",
    )
    event = trace.event("filled", allocator, uuid=uuid)
    if event is None:
        return missing(base, trace, allocator)
    used = event["bytes"] / MIB
    if used > cap:
        reason = "above the cap"
    elif not event["refused"]:
        reason = "never refused"
    elif used < cap - GRANULE_MIB:
        reason = REFUSED_EARLY
    else:
        reason = ""
    return msgspec.structs.replace(
        base, verdict="fail" if reason else "pass", workload=used, reason=reason
    )


def ticks(samples: Iterable[Sample], uid: str, start: float, end: float) -> dict[float, int]:
    """Return bytes by sampling time, summed over the processes in ``samples`` of a pod."""
    sums: dict[float, int] = {}
    for sample in samples:
        if sample.pod_uid == uid and start <= sample.time <= end:
            sums[sample.time] = sums.get(sample.time, 0) + sample.bytes
    return sums


def card_bytes(tenant: Tenant, trial: Trial, allocator: str, uuid: str, card: str) -> Check:
    """Does the card count what the pod counts, and never more than the cap?"""
    trace, pod = tenant.trace(trial), trial.pods[tenant.pod]
    cap = tenant.asked.gpumem or 0
    base = Check(
        name="card_bytes",
        pod=tenant.label,
        variant=variant(allocator, card),
        verdict="error",
        asked=float(cap),
        tolerance=GRANULE_MIB,
        unit="MiB",
        source=f"monitor ({trial.source})",
        control="fail",
    )
    filled = trace.event("filled", allocator, uuid=uuid)
    holding, released = trace.event("holding", allocator), trace.event("released", allocator)
    if filled is None or holding is None or released is None:
        return missing(base, trace, allocator)
    base = msgspec.structs.replace(base, workload=filled["bytes"] / MIB)
    if others := strangers(trial.samples):
        return msgspec.structs.replace(base, reason=others)
    own = [s for s in trial.samples if s.uuid == uuid and s.container == tenant.container]
    held = ticks(own, pod.uid, holding["time"], released["time"])
    # A tick's time is when it was stored: the first may have been read while it filled still.
    held.pop(min(held, default=0.0), None)
    if not held:
        return msgspec.structs.replace(base, reason="the monitor took no sample while it was full")
    visible = trace.event("visible", allocator)
    phase = ticks(own, pod.uid, visible["time"] if visible else 0.0, released["time"])
    peak, low = max(phase.values()) / MIB, min(held.values()) / MIB
    told = filled["bytes"] / MIB
    reason = ""
    if peak > cap:
        reason = "above the cap"
    elif max(abs(peak - told), abs(low - told)) > GRANULE_MIB:
        reason = "the card and the pod disagree"
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason else "pass",
        card=peak if peak > cap or abs(peak - told) >= abs(low - told) else low,
        reason=reason,
    )


def visible_size(tenant: Tenant, trial: Trial, allocators: Sequence[str]) -> Check:
    """Do PyTorch, driver API and NVML all tell the cap as each card's size?"""
    trace = tenant.trace(trial)
    cap = float(tenant.asked.gpumem or 0)
    base = Check(name="visible_size", pod=tenant.label, verdict="error", asked=cap, unit="MiB")
    sizes: dict[str, float] = {}
    for allocator in allocators:
        events = [e for e in trace.events if (e["event"], e.get("phase")) == ("visible", allocator)]
        if len(events) < max(1, tenant.asked.gpu):
            return missing(base, trace, allocator)
        for source, value in (item for event in events for item in event["sizes"].items()):
            size = value / MIB
            if size != cap or source not in sizes:
                sizes[source] = size
    wrong = {source: size for source, size in sizes.items() if size != cap}
    return msgspec.structs.replace(
        base,
        verdict="fail" if wrong else "pass",
        workload=next(iter(wrong.values()), cap),
        tolerance=0.0,
        source=", ".join(sizes),
        reason=", ".join(f"{source} tells {size:,.0f}" for source, size in wrong.items()),
    )


def survives(tenant: Tenant, trial: Trial, allocator: str, uuid: str, card: str) -> Check:
    """After the refusal: freed, allocated again, 64 MiB there and back equal?"""
    trace = tenant.trace(trial)
    base = Check(
        name="survives",
        pod=tenant.label,
        variant=variant(allocator, card),
        verdict="error",
        unit="MiB",
        source="workload",
    )
    event = trace.event("survived", allocator, uuid=uuid)
    if event is None:
        return missing(base, trace, allocator)
    reasons = []
    if not event["equal"]:
        reasons.append("64 MiB came back different")
    if event["again"] < event["freed_to"] + 256 * MIB:
        reasons.append("a new allocation was not counted")
    filled = trace.event("filled", allocator, uuid=uuid)
    if filled is not None and event["freed_to"] >= filled["bytes"]:
        reasons.append("nothing was given back")
    return msgspec.structs.replace(
        base,
        verdict="fail" if reasons else "pass",
        workload=event["freed_to"] / MIB,
        reason=", ".join(reasons),
    )


def annotations_agree(asked: PodParameters, trace: PodTrace, trial: Trial) -> Check:
    """Do pod, ledger and node tell the same story, in the contract's words?"""
    members = asked.each()
    base = Check(
        name="annotations",
        pod=trace.name,
        verdict="fail",
        asked="; ".join(
            f"{own.gpu} card{'s' if own.gpu > 1 else ''},"
            f" {'all memory' if own.gpumem is None else f'{own.gpumem} MiB'}, {own.gpucores} %"
            for own in members.values()
        ),
        source="pod, extender's ledger, node",
    )
    notes: Mapping[str, str] = trace.object.get("metadata", {}).get("annotations", {})
    reasons: list[str] = []
    try:
        shares = decode_pod_shares(notes.get(names.POD_ALLOCATED, ""))
        waiting = decode_pod_shares(notes.get(names.POD_TO_ALLOCATE, ""))
    except CodecError as error:
        return msgspec.structs.replace(base, reason=str(error))
    registered = {card.uuid: card for card in trial.registered.get(trace.node, ())}
    for number, (name, own) in enumerate(members.items()):
        held = shares[number] if number < len(shares) else ()
        of = f" of {name}" if len(members) > 1 else ""
        if len(held) != own.gpu:
            reasons.append(f"{len(held)} devices{of} in {names.POD_ALLOCATED}")
        for share in held:
            card = registered.get(share.uuid)
            whole = card.mem_mib if card else share.mem_mib
            mem = whole if own.gpumem is None else own.gpumem
            # The whole card's memory and no word on cores: nobody else could use the rest.
            cores = 100 if own.gpumem is None and not own.gpucores else own.gpucores
            if (share.mem_mib, share.core_pct) != (mem, cores):
                reasons.append(f"promised{of} {share.mem_mib} MiB, {share.core_pct} %")
            if card is None:
                reasons.append(f"{share.uuid} is not registered on {trace.node}")
        told = trace.container(name).events
        seen = dict.fromkeys(e["uuid"] for e in told if e["event"] in ("visible", "working"))
        # In this order: the container's limits follow it.
        if held and tuple(seen) != tuple(share.uuid for share in held):
            want = ", ".join(share.uuid for share in held)
            reasons.append(f"the pod{of} saw {', '.join(seen) or 'no card'}, not {want}")
    if any(shares):
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
