"""Checks of shares of compute (pure): as the card granted it, and as the work went on.

Without the limiter every tenant that keeps work queued gets an even part of the card.
A check proves something only where that is not what was asked for, so each states
what the control must show: alone under the policy ``force`` a pod without the limiter
has the whole card, and beside others an even part. Where the even part lies too near
to what was asked the control tells nothing (``any``), and another phase must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from testbed.lab.scenario.question import Trial
from testbed.lab.scenario.record import Check
from testbed.lab.scenario.shares import Share, device_share, step_rate, water_fill

from .tenants import Parameters, Tenant, missing, named_cards, strangers, tenants, variant

#: Percentage points, as the card granted the time; on hardware NVML tells whole
#: percents of a sampling period, and not whose slice it was to better than that.
CARD_POINTS = {"busy": 2.0, "utilization": 5.0}
#: Percentage points of a pod's own rate alone and without the limiter.
WORK_POINTS = 4.0
#: What switching between contexts costs a card on which several have work, percent: 0.153 ms
#: after each slice of 2.09 ms (measured on an H200, driver 580; two get 46.3 % each).
SWITCHING_PCT = 7.4
#: The control must miss what was asked for by this much more than the tolerance, or
#: noise could decide it.
MARGIN_POINTS = 3.0
#: How far a share without a limiter may be from an even part of the card, for the control
#: to be believed.
EVEN_POINTS = 10.0
#: A lone pod that is not to be limited has at least this much of its free rate.
FREE_PCT = 99.0
#: A pod left alone on a card has at least this much of it, once it is free.
RUNS_FREE_PCT = 97.0
#: After a neighbour came or went: how long until shares are as promised, seconds.
SETTLE_SECONDS = 3.0
ALONE_SETTLE_SECONDS = 1.0
#: What a killed pod held is free again after this, seconds.
FREED_SECONDS = 5.0
#: How long the others work on after a kill: until then, and as long to measure in.
AFTER_SECONDS = 2 * FREED_SECONDS

TOGETHER, KILL, AFTER = "together", "kill", "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A part of a trial in which a share is measured.

    Attributes:
        name: ``alone``, ``together`` or ``after`` (the others' kill).
        others: Who works on the same cards meanwhile.
    """

    name: str
    others: tuple[Tenant, ...]


def situations(
    parameters: Parameters, tenant: Tenant, neighbours: tuple[Tenant, ...]
) -> list[Situation]:
    """Return the parts of a trial in which a tenant works, given who is on its card."""
    found = [Situation(name="alone", others=())] if tenant.asked.gpucores else []
    if len(tenants(parameters)) > 1:
        found.append(Situation(name=TOGETHER, others=neighbours))
    if parameters.kill and tenant.pod != parameters.kill:
        left = tuple(other for other in neighbours if other.pod != parameters.kill)
        found.append(Situation(name=AFTER, others=left))
    return found


def limit_of(tenant: Tenant, others: tuple[Tenant, ...], policy: str) -> float:
    """Return the most that a tenant may have beside others, percent of a card."""
    held = tenant.limited and (policy == "force" or (policy == "default" and bool(others)))
    return float(tenant.asked.gpucores) if held else 100.0


def attainable(tenant: Tenant, others: tuple[Tenant, ...], policy: str) -> float:
    """Return what a tenant that keeps work queued gets beside others that do, percent."""
    members = (tenant, *others)
    wanted = [
        limit_of(each, tuple(o for o in members if o is not each), policy) for each in members
    ]
    return water_fill(wanted, 100.0 - (SWITCHING_PCT if others else 0.0))[0]


def control_shows(
    tenant: Tenant, others: tuple[Tenant, ...], points: float
) -> Literal["fail", "any"]:
    """Return ``fail`` where an even part of the card is far from what was asked."""
    even = attainable(tenant, others, "disable")
    far = abs(even - tenant.asked.gpucores) >= points + MARGIN_POINTS
    return "fail" if far else "any"


def unlimited(
    parameters: Parameters, tenant: Tenant, trial: Trial
) -> dict[tuple[str, str, str], float]:
    """Return what each of a tenant's share checks finds without a limiter, percent.

    By the check's identity (name, pod, variant).
    """
    found = {}
    for situation, _, card in _where(parameters, tenant, trial):
        even = attainable(tenant, situation.others, "disable")
        for name in ("share_card", "share_work"):
            found[name, tenant.label, variant(situation.name, card)] = even
    return found


# --- the checks ------------------------------------------------------------------
def share_checks(
    parameters: Parameters, tenant: Tenant, trial: Trial, solo: Trial | None
) -> list[Check]:
    """Return the checks of one tenant's share, each with what the control must show."""
    found: list[Check] = []
    for situation, uuid, card in _where(parameters, tenant, trial):
        limit = limit_of(tenant, situation.others, parameters.policy)
        if limit >= 100:
            continue
        name = variant(situation.name, card)
        found.append(share_card(parameters, tenant, trial, situation, uuid, name))
        if situation.name != AFTER:
            found.append(share_work(parameters, tenant, trial, solo, situation, uuid, name))
    return found


def free_checks(
    parameters: Parameters, tenant: Tenant, trial: Trial, solo: Trial | None
) -> list[Check]:
    """Return the checks that a tenant is left alone where nothing is to limit it."""
    found: list[Check] = []
    for situation, uuid, card in _where(parameters, tenant, trial):
        if situation.others or limit_of(tenant, (), parameters.policy) < 100:
            continue
        if situation.name == "alone":
            found.append(lone_free(parameters, tenant, trial, solo, uuid, card))
        elif situation.name == AFTER:
            found.append(takes_over(parameters, tenant, trial, uuid, card))
    if parameters.apart and tenant.asked.gpucores:
        for uuid, card in named_cards(tenant.cards(trial)):
            found.append(undisturbed(parameters, tenant, trial, uuid, card))
    return found


def share_card(
    parameters: Parameters,
    tenant: Tenant,
    trial: Trial,
    situation: Situation,
    uuid: str,
    name: str,
) -> Check:
    """Is the share of device time what was asked for, as the card granted it?"""
    asked = float(tenant.asked.gpucores)
    points = CARD_POINTS["busy"]
    base = Check(
        name="share_card",
        pod=tenant.label,
        variant=name,
        verdict="error",
        asked=asked,
        tolerance=points,
        unit="%",
        source=f"monitor ({trial.source})",
        control=control_shows(tenant, situation.others, points),
    )
    share = _share(base, parameters, tenant, trial, situation, uuid)
    if isinstance(share, Check):
        return share
    points = CARD_POINTS[share.measure]
    base = msgspec.structs.replace(
        base,
        tolerance=points,
        source=f"{base.source}, {share.measure} over {_span(share)}",
        control=control_shows(tenant, situation.others, points),
    )
    return _judge(
        base, asked, share.pct, points, attainable(tenant, situation.others, parameters.policy)
    )


def share_work(
    parameters: Parameters,
    tenant: Tenant,
    trial: Trial,
    solo: Trial | None,
    situation: Situation,
    uuid: str,
    name: str,
) -> Check:
    """Does the work go on at the share asked for, by the workload's own count of steps?

    Against its rate alone on the card without the limiter, which the control measured.
    """
    asked = float(tenant.asked.gpucores)
    base = Check(
        name="share_work",
        pod=tenant.label,
        variant=name,
        verdict="error",
        asked=asked,
        tolerance=WORK_POINTS,
        unit="%",
        source="workload",
        control=control_shows(tenant, situation.others, WORK_POINTS),
    )
    pair = _rates(base, parameters, tenant, trial, solo, situation.name, uuid)
    if isinstance(pair, Check):
        return pair
    rate, free = pair
    base = msgspec.structs.replace(
        base, source=f"workload, {rate:.1f} of {free:.1f} steps/s alone and unlimited"
    )
    least = attainable(tenant, situation.others, parameters.policy)
    found = _judge(base, asked, rate / free * 100, WORK_POINTS, least)
    return msgspec.structs.replace(found, workload=found.card, card=None)


def lone_free(
    parameters: Parameters, tenant: Tenant, trial: Trial, solo: Trial | None, uuid: str, card: str
) -> Check:
    """Does a pod alone on its card run as fast as without the limiter?"""
    base = Check(
        name="lone_free",
        pod=tenant.label,
        variant=card,
        verdict="error",
        asked=100.0,
        tolerance=100.0 - FREE_PCT,
        unit="%",
    )
    pair = _rates(base, parameters, tenant, trial, solo, "alone", uuid)
    if isinstance(pair, Check):
        return pair
    rate, free = pair
    alone = Situation(name="alone", others=())
    share = _share(base, parameters, tenant, trial, alone, uuid)
    if isinstance(share, Check) and share.verdict == "error":
        return share
    pct = rate / free * 100
    return msgspec.structs.replace(
        base,
        verdict="pass" if pct >= FREE_PCT else "fail",
        workload=round(pct, 2),
        card=round(share.pct, 2) if isinstance(share, Share) else None,
        source=f"workload, {rate:.1f} of {free:.1f} steps/s; monitor ({trial.source})",
        reason="" if pct >= FREE_PCT else "slower than without the limiter",
    )


def undisturbed(
    parameters: Parameters, tenant: Tenant, trial: Trial, uuid: str, card: str
) -> Check:
    """Does a pod on a card of its own go on as if the others were not there?"""
    base = Check(
        name="undisturbed",
        pod=tenant.label,
        variant=card,
        verdict="error",
        asked=100.0,
        tolerance=WORK_POINTS,
        unit="%",
    )
    if _neighbours(parameters, tenant, trial, uuid):
        return msgspec.structs.replace(base, reason="another pod was on the same card")
    pair = _rates(base, parameters, tenant, trial, trial, TOGETHER, uuid)
    if isinstance(pair, Check):
        return pair
    rate, alone = pair
    pct = rate / alone * 100
    held = abs(pct - 100) <= WORK_POINTS
    return msgspec.structs.replace(
        base,
        verdict="pass" if held else "fail",
        workload=round(pct, 2),
        source=f"workload, {rate:.1f} steps/s beside the others, {alone:.1f} before",
        reason="" if held else "its rate changed when the others began",
    )


def takes_over(parameters: Parameters, tenant: Tenant, trial: Trial, uuid: str, card: str) -> Check:
    """Is a pod that was left alone by a kill free to use what became free?"""
    base = Check(
        name="freed",
        pod=tenant.label,
        variant=variant("share", card),
        verdict="error",
        asked=100.0,
        tolerance=100.0 - RUNS_FREE_PCT,
        unit="%",
        source=f"monitor ({trial.source})",
    )
    situation = Situation(name=AFTER, others=())
    share = _share(base, parameters, tenant, trial, situation, uuid)
    if isinstance(share, Check):
        return share
    free = share.pct >= RUNS_FREE_PCT
    return msgspec.structs.replace(
        base,
        verdict="pass" if free else "fail",
        card=round(share.pct, 2),
        source=f"{base.source}, from {FREED_SECONDS:g} s after the kill, {_span(share)}",
        reason="" if free else f"still held back {FREED_SECONDS:g} s after the kill",
    )


def freed(tenant: Tenant, trial: Trial) -> list[Check]:
    """How long after its deletion had the card nothing of the killed pod any more?"""
    pod = trial.pods[tenant.pod]
    found = []
    for uuid, card in named_cards(tenant.cards(trial)):
        base = Check(
            name="freed",
            pod=tenant.label,
            variant=variant("memory", card),
            verdict="error",
            asked=FREED_SECONDS,
            tolerance=0.0,
            unit="s",
            source=f"monitor ({trial.source})",
        )
        if pod.deleted is None:
            found.append(missing(base, tenant.trace(trial), KILL))
            continue
        here = [s for s in trial.samples if s.uuid == uuid]
        held = [
            s.time
            for s in here
            if s.pod_uid == pod.uid and s.container == tenant.container and s.bytes
        ]
        if not any(time < pod.deleted for time in held):
            reason = "the card counted nothing of it before the kill"
            found.append(msgspec.structs.replace(base, reason=reason))
            continue
        empty = [s.time for s in here if s.time > max(held)]
        if not empty:
            reason = "the card still counted it when the trial ended"
            found.append(msgspec.structs.replace(base, verdict="fail", reason=reason))
            continue
        seconds = max(0.0, min(empty) - pod.deleted)
        late = seconds > FREED_SECONDS
        found.append(
            msgspec.structs.replace(
                base,
                verdict="fail" if late else "pass",
                card=round(seconds, 2),
                reason="its memory was not free in time" if late else "",
            )
        )
    return found


# --- below -----------------------------------------------------------------------
def _where(
    parameters: Parameters, tenant: Tenant, trial: Trial
) -> Iterator[tuple[Situation, str, str]]:
    for uuid, card in named_cards(tenant.cards(trial)):
        for situation in situations(
            parameters, tenant, _neighbours(parameters, tenant, trial, uuid)
        ):
            yield situation, uuid, card


def _neighbours(
    parameters: Parameters, tenant: Tenant, trial: Trial, uuid: str
) -> tuple[Tenant, ...]:
    """Return the other containers that were on a card in a trial."""
    return tuple(
        other
        for other in tenants(parameters)
        if other.label != tenant.label and other.pod in trial.pods and uuid in other.cards(trial)
    )


def _judge(base: Check, asked: float, figure: float, points: float, least: float) -> Check:
    """Return the verdict on a share; the figure is put where the card's belongs.

    Where the limits add up to more than the card can give, nobody could get his whole
    share: what is attainable counts then.
    """
    if figure > asked + points:
        reason = "more than its share"
    elif figure < min(asked, least) - points:
        reason = "less than its share"
    else:
        reason = ""
    tolerance = points + max(0.0, asked - least)
    if tolerance > points:
        note = f"{points:g} above; below, only {least:.1f} can be had beside the others"
        base = msgspec.structs.replace(base, source=f"{base.source} ({note})")
    return msgspec.structs.replace(
        base,
        verdict="fail" if reason else "pass",
        card=round(figure, 2),
        tolerance=round(tolerance, 1),
        reason=reason,
    )


def untold(trial: Trial) -> bool:
    """Tell whether a card says nothing of single processes, as some drivers do.

    NVML's process utilisation is documented to be missing at times, and is on some
    machines always (H200 in a virtual machine, driver 580: measured).
    """
    return trial.source == "nvml" and all(
        s.busy_ns is None and s.utilization_pct is None for s in trial.samples
    )


def _window(
    parameters: Parameters, tenant: Tenant, trial: Trial, situation: str
) -> tuple[float, float] | str:
    """Return begin and end of a situation's measurement, or what is missing."""
    trace = tenant.trace(trial)
    if situation == "alone":
        begin, end = trace.event("released", tenant.alone), trace.event("worked", tenant.alone)
        if begin is None or end is None:
            return tenant.alone
        return begin["time"] + ALONE_SETTLE_SECONDS, end["time"]
    if situation == AFTER:
        deleted = trial.pods[parameters.kill].deleted if parameters.kill in trial.pods else None
        end = trace.event("worked", KILL)
        if deleted is None or end is None:
            return KILL
        return deleted + FREED_SECONDS, end["time"]
    begins, ends = [], []
    for each in tenants(parameters):
        if each.pod not in trial.pods:
            return TOGETHER
        begin = each.trace(trial).event("released", TOGETHER)
        end = each.trace(trial).event("worked", TOGETHER)
        if begin is None or end is None:
            return TOGETHER
        begins.append(begin["time"])
        ends.append(end["time"])
    return max(begins) + SETTLE_SECONDS, min(ends)


def _share(
    base: Check,
    parameters: Parameters,
    tenant: Tenant,
    trial: Trial,
    situation: Situation,
    uuid: str,
) -> Share | Check:
    """Return a share as the card granted it, or the error that there is none."""
    window = _window(parameters, tenant, trial, situation.name)
    if isinstance(window, str):
        return missing(base, tenant.trace(trial), window)
    if others := strangers(trial.samples):
        return msgspec.structs.replace(base, reason=others)
    share = device_share(
        trial.samples,
        pod_uid=trial.pods[tenant.pod].uid,
        container=tenant.container,
        uuid=uuid,
        start=window[0],
        end=window[1],
    )
    if share is None and untold(trial):
        return msgspec.structs.replace(
            base,
            verdict="skipped",
            control="any" if base.control else "",
            reason="the card's driver tells no utilisation of single processes",
        )
    if share is None:
        reason = f"the monitor told too little of its share ({situation.name})"
        return msgspec.structs.replace(base, reason=reason)
    return share


def _rates(
    base: Check,
    parameters: Parameters,
    tenant: Tenant,
    trial: Trial,
    solo: Trial | None,
    situation: str,
    uuid: str,
) -> tuple[float, float] | Check:
    """Return steps a second in a situation and alone in the ``solo`` trial, or why not."""
    if solo is None:
        reason = "what it does alone and unlimited is measured by the control"
        return msgspec.structs.replace(base, verdict="skipped", reason=reason)
    if tenant.pod not in solo.pods:
        return msgspec.structs.replace(base, reason="the pod was not in the control")
    rates: list[float] = []
    for of, where in ((trial, situation), (solo, "alone")):
        window = _window(parameters, tenant, of, where)
        if isinstance(window, str):
            return missing(base, tenant.trace(of), window)
        rate = step_rate(tenant.trace(of).events, uuid=uuid, start=window[0], end=window[1])
        if not rate:
            of_which = " of the control" if of is solo and of is not trial else ""
            reason = f"the workload told too few steps ({where}{of_which})"
            return msgspec.structs.replace(base, reason=reason)
        rates.append(rate)
    return rates[0], rates[1]


def _span(share: Share) -> str:
    return f"{share.end - share.start:.1f} s"
