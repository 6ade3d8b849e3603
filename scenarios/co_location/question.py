"""Do pods on one card keep their memory caps and their shares of compute, side by side?

Pure: says which pods to run and judges what came of them. Two independent observations
meet in each check: what the workload measured in its pod, and what the card counted
for the pod (the monitor's samples).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

from testbed.errors import InputError
from testbed.lab.report.chart import Chart, make_chart
from testbed.lab.scenario.question import ContainerPlan, PodPlan, Sample, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.stack import names

from . import memory_checks, share_checks
from .tenants import ALLOCATORS, Parameters, Tenant, computes, tenants

#: Beside the workload itself.
FILES = ("facts.py", "fill.py", "flat_out.py")
#: Sampling times of the monitor in a phase of compute before it goes on: the figures
#: of such a phase come while it works.
SHARE_TICKS = 1


MEANINGS = {
    "memory_cap": "A pod that allocates until it is refused ends at its cap, not above it and not"
    " more than one granule below, as it measures itself.",
    "card_bytes": "The card counts the same bytes for the pod, and never more than its cap.",
    "visible_size": "PyTorch, driver API and NVML all tell the cap as the card's size.",
    "survives": "After the refusal the pod frees, allocates again, and copies come back unchanged.",
    "annotations": "Pod, the extender's ledger and node tell the same story.",
    "placement": "The pods lie on one card, or on cards of their own, as the case wants it.",
    "share_card": "The card grants the pod the share of its time that was asked for, alone and"
    " beside others.",
    "share_work": "The pod's steps per second, against its own rate alone on the card without the"
    " limiter, are the share that was asked for.",
    "lone_free": "A pod alone on its card, which is not to be limited there, runs as fast as"
    " without the limiter.",
    "freed": "What a killed pod held of the card is free within five seconds: its memory, and its"
    " share where those that are left may use it.",
    "undisturbed": "A pod on a card of its own does not notice what others do on theirs.",
}


class CoLocation:
    """The question, as the testbed runs it."""

    name = "co_location"
    title = "Do pods on one card keep their memory caps and their shares of compute?"
    parameters = Parameters
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS

    def validate(self, parameters: Parameters) -> None:
        """Refuse what no cluster could run or no control could tell, before anything runs."""
        if not parameters.pods:
            raise InputError("the case has no pods", hint="name at least one below `pods:`")
        for name, pod in parameters.pods.items():
            _check_name("pod", name)
            if pod.containers and (pod.gpumem, pod.gpu, pod.gpucores) != (None, 1, 0):
                raise InputError(
                    f"pod {name} asks for itself and for its containers",
                    hint="move gpu, gpumem and gpucores into the containers",
                )
            if pod.run_as_user is not None and not 0 <= pod.run_as_user <= 65535:
                raise InputError(
                    f"pod {name}: run_as_user is {pod.run_as_user}", hint="use 0 to 65535"
                )
        for tenant in tenants(parameters):
            _check_name("container", tenant.container)
            _check_asked(tenant)
        _check_memory_part(parameters)
        _check_times(parameters)
        if parameters.kill and (len(parameters.pods) < 2 or parameters.kill not in parameters.pods):
            raise InputError(
                f"kill is {parameters.kill!r}",
                hint="name one of several pods: " + ", ".join(parameters.pods),
            )
        if parameters.kill and not computes(parameters):
            raise InputError(
                "kill needs pods at work, and none has a share", hint="give one gpucores"
            )
        _check_control_tells(parameters)

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return one pod for each entry of ``pods``."""
        phases = _phases(parameters)
        by_pod: dict[str, list[ContainerPlan]] = {}
        for tenant in tenants(parameters):
            by_pod.setdefault(tenant.pod, []).append(_container(parameters, tenant, phases))
        return tuple(
            PodPlan(
                name=name,
                containers=tuple(by_pod[name]),
                files=FILES,
                annotations={names.CARD_POLICY: "spread" if parameters.apart else "binpack"},
                run_as_user=pod.run_as_user,
                delete_in=share_checks.KILL if name == parameters.kill else "",
            )
            for name, pod in parameters.pods.items()
        )

    def needs(self, parameters: Parameters) -> int:
        """Return how many cards one node must have."""
        most = max(tenant.asked.gpu for tenant in tenants(parameters))
        return sum(t.asked.gpu for t in tenants(parameters)) if parameters.apart else most

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge a run with the limiter."""
        found: list[Check] = []
        for tenant in tenants(parameters):
            if tenant.pod not in trial.pods:
                found.append(_no_pod(tenant))
                continue
            if tenant.asked.gpumem is not None and parameters.allocators:
                allocators = parameters.allocators
                found += memory_checks.limit_checks(tenant, allocators, trial)
                found += memory_checks.rule_checks(tenant, allocators, trial)
            if computes(parameters):
                found += share_checks.share_checks(parameters, tenant, trial, control)
                found += share_checks.free_checks(parameters, tenant, trial, control)
            if tenant.pod == parameters.kill:
                found += share_checks.freed(tenant, trial)
        for name, pod in parameters.pods.items():
            if name in trial.pods:
                found.append(memory_checks.annotations_agree(pod, trial.pods[name], trial))
        if len(tenants(parameters)) > 1:
            found.append(placement(parameters, trial))
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without the limiter: they must pass their limits."""
        found: list[Check] = []
        even: dict[tuple[str, str, str], float] = {}
        for tenant in tenants(parameters):
            if tenant.pod not in trial.pods:
                found.append(_no_pod(tenant))
                continue
            if tenant.asked.gpumem is not None and parameters.allocators:
                found += memory_checks.limit_checks(tenant, parameters.allocators, trial)
            if computes(parameters):
                found += share_checks.share_checks(parameters, tenant, trial, trial)
                even |= share_checks.unlimited(parameters, tenant, trial)
        return judge_control(found, even)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return what the card counted for each container over time, with the limits."""
        members = tenants(parameters)
        limits = {t.label: float(t.asked.gpucores if t.limited else 0) for t in members}
        return make_chart(
            trial,
            control,
            memory={t.label: float(t.asked.gpumem or 0) for t in members},
            compute=limits if computes(parameters) else None,
            key=lambda one: _key(members, one),
        )


# --- the plan ----------------------------------------------------------------------
def _phases(parameters: Parameters) -> dict[str, dict[str, Any]]:
    """Return the phases of compute by name, in the order in which all pods take them."""
    if not computes(parameters):
        return {}
    members = tenants(parameters)
    seconds = {t.alone: parameters.alone_seconds for t in members if t.asked.gpucores}
    if len(members) > 1:
        settled = share_checks.SETTLE_SECONDS + parameters.together_seconds
        seconds[share_checks.TOGETHER] = settled
    if parameters.kill:
        seconds[share_checks.KILL] = share_checks.AFTER_SECONDS
    return {
        name: {
            "name": name,
            "index": len(parameters.allocators) + number,
            "seconds": duration,
            "at_work": name == share_checks.KILL,
            "ticks": SHARE_TICKS,
        }
        for number, (name, duration) in enumerate(seconds.items())
    }


def _container(
    parameters: Parameters, tenant: Tenant, phases: Mapping[str, Mapping[str, Any]]
) -> ContainerPlan:
    asked = tenant.asked
    limits = {names.RESOURCE_COUNT: str(asked.gpu)}
    if asked.gpumem is not None:
        limits[names.RESOURCE_MEMORY] = str(asked.gpumem)
    if asked.gpucores:
        limits[names.RESOURCE_CORES] = str(asked.gpucores)
    own = {tenant.alone, share_checks.TOGETHER, share_checks.KILL}
    # As HAMi's users do ("Container configs", docs/config.md); what is the default of
    # the stack needs no word.
    policy = {} if parameters.policy == "default" else {names.ENV_CORE_POLICY: parameters.policy}
    return ContainerPlan(
        name=tenant.container,
        limits=limits,
        env=policy,
        parameters={
            "allocators": list(parameters.allocators) if asked.gpumem is not None else [],
            "ceiling_mib": (asked.gpumem or 0) * parameters.ceiling_pct // 100,
            "hold_seconds": parameters.hold_seconds,
            "phases": [phase for name, phase in phases.items() if name in own],
        },
    )


def _key(members: Sequence[Tenant], trial: Trial) -> Any:
    labels = {(trial.pods[t.pod].uid, t.container): t.label for t in members if t.pod in trial.pods}

    def label(sample: Sample) -> str:
        return labels.get((sample.pod_uid, sample.container), "")

    return label


# --- the control -------------------------------------------------------------------
def judge_control(
    found: Sequence[Check], even: Mapping[tuple[str, str, str], float] | None = None
) -> Control:
    """Return ``pass`` if every limit check failed that must, for want of the limiter.

    Args:
        found: The checks of the control run.
        even: Of each share, by the check's identity, what a card without a limiter
            gives, percent. A share that is off for another reason proves nothing.
    """
    reasons = []
    for check in found:
        what = f"{check.name} of {check.pod}"
        if check.name.startswith("share") and check.variant:
            what += f" ({check.variant})"
        if check.verdict == "skipped" and check.control == "any":
            continue
        if check.verdict in ("error", "skipped"):
            reasons.append(f"{what}: {check.verdict} ({check.reason})")
        elif check.name.startswith("share"):
            reasons += _off_even(check, what, (even or {}).get(check.identity))
        elif check.verdict != "fail" or not _above(check):
            reason = f"{what} did not pass its cap"
            if check.reason == memory_checks.REFUSED_EARLY:
                reason += ": the card was full before (ask for less of it, or lower ceiling_pct)"
            reasons.append(reason)
    if not any(check.control == "fail" for check in found):
        reasons.append("the control checked nothing")
    return Control(
        verdict="error" if reasons else "pass",
        checks=tuple(found),
        reason="; ".join(dict.fromkeys(reasons)),
    )


def _off_even(check: Check, what: str, even: float | None) -> list[str]:
    figure = check.card if check.card is not None else check.workload
    if check.control == "fail" and check.verdict != "fail":
        return [f"{what} held its share"]
    if even is None or not isinstance(figure, float):
        return []
    if abs(figure - even) > share_checks.EVEN_POINTS:
        return [f"{what} had {figure:.0f} %, where a card without a limiter gives {even:.0f} %"]
    return []


def _above(check: Check) -> bool:
    figure = check.card if check.name == "card_bytes" else check.workload
    return isinstance(figure, float) and isinstance(check.asked, float) and figure > check.asked


def _no_pod(tenant: Tenant) -> Check:
    return Check(
        name="memory_cap", pod=tenant.label, verdict="error", reason="no pod", control="fail"
    )


def placement(parameters: Parameters, trial: Trial) -> Check:
    """Do the pods lie on one card, or on cards of their own, as the case wants?"""
    cards = {t.label: set(t.cards(trial)) for t in tenants(parameters) if t.pod in trial.pods}
    pairs = list(combinations(cards, 2))
    if parameters.apart:
        wrong = [pair for pair in pairs if cards[pair[0]] & cards[pair[1]]]
        reason = ", ".join(f"{a} and {b} share a card" for a, b in wrong)
    else:
        wrong = [pair for pair in pairs if not cards[pair[0]] & cards[pair[1]]]
        reason = ", ".join(f"{a} and {b} share no card" for a, b in wrong)
    return Check(
        name="placement",
        verdict="fail" if wrong else "pass",
        asked="cards of their own" if parameters.apart else "one card",
        workload=_counted(len(set().union(*cards.values()))),
        source="workload",
        reason=reason,
    )


def _counted(number: int) -> str:
    return "1 card" if number == 1 else f"{number} cards"


# --- what is refused ---------------------------------------------------------------
def _check_name(kind: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9]{1,20}", name):
        raise InputError(
            f"{kind} {name!r} has an unusable name", hint="use up to 20 letters a-z and digits"
        )


def _check_asked(tenant: Tenant) -> None:
    asked, label = tenant.asked, tenant.label
    if not 1 <= asked.gpu <= 16:
        raise InputError(f"{label}: gpu is {asked.gpu}", hint="use 1 to 16")
    if asked.gpumem is not None and asked.gpumem < 1024:
        raise InputError(
            f"{label}: gpumem is {asked.gpumem}",
            why="PyTorch's context alone takes half a GiB",
            hint="ask for 1024 (MiB) or more",
        )
    if not 0 <= asked.gpucores <= 100:
        raise InputError(f"{label}: gpucores is {asked.gpucores}", hint="use 0 to 100")
    if asked.gpumem is None and not asked.gpucores:
        raise InputError(
            f"{label} asks for whole cards",
            why="there is no limit to check",
            hint="give it gpumem (MiB), gpucores (percent) or both",
        )


def _check_memory_part(parameters: Parameters) -> None:
    unknown = set(parameters.allocators) - set(ALLOCATORS)
    if unknown:
        raise InputError(
            f"unknown allocators: {', '.join(sorted(unknown))}",
            hint="choose among " + ", ".join(ALLOCATORS),
        )
    if not parameters.allocators and not computes(parameters):
        raise InputError(
            "no allocators are given, and no pod has a share of compute",
            why="there is nothing to check",
            hint="choose among " + ", ".join(ALLOCATORS),
        )
    if not 101 <= parameters.ceiling_pct <= 200:
        raise InputError(
            f"ceiling_pct is {parameters.ceiling_pct}",
            why="the ceiling must lie above the cap",
            hint="use 101 to 200",
        )


def _check_times(parameters: Parameters) -> None:
    for name, least, most in (
        ("hold_seconds", 1, 600),
        ("alone_seconds", 3, 120),
        ("together_seconds", 5, 600),
    ):
        if not least <= (value := getattr(parameters, name)) <= most:
            raise InputError(f"{name} is {value}", hint=f"use {least} to {most}")


def _check_control_tells(parameters: Parameters) -> None:
    """Refuse a share that the same pods would have without the limiter as well."""
    members = tenants(parameters)
    if not computes(parameters):
        return
    for tenant in members:
        others = () if parameters.apart else tuple(t for t in members if t is not tenant)
        shows = [
            share_checks.control_shows(tenant, situation.others, share_checks.WORK_POINTS)
            for situation in share_checks.situations(parameters, tenant, others)
            if share_checks.limit_of(tenant, situation.others, parameters.policy) < 100
        ]
        if shows and "fail" not in shows:
            even = share_checks.attainable(tenant, others, "disable")
            raise InputError(
                f"{tenant.label}: a share of {tenant.asked.gpucores} % cannot be checked",
                why=f"without the limiter it would have {even:.0f} % of the card",
                hint="ask for another share, or set `policy: force`",
            )


QUESTION = CoLocation()
