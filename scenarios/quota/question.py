"""What of a namespace's quota does a pod take that asks for a percentage?

Pure: says which pods come and go on nodes whose cards differ, and works out by plain
arithmetic where each may lie: what counts is what the pod gets in the end, so the same
percentage of a smaller card takes less of the quota. Compute is counted as it is asked
for, so there admission knows at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Cap, Chart, Line, Panel, Side
from testbed.lab.scenario import staging
from testbed.lab.scenario.question import NoPods, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.simulated import SimulatedNode, cards_of
from testbed.lab.scenario.staging import Move, StagedPod, Staging
from testbed.stack import names

from .arithmetic import (
    REFUSES,
    WAITS,
    Parameters,
    expected,
    parsed,
    quota,
    share,
    unlimited,
)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?")
REFUSED = "exceeding resource quota"
NO_ROOM = "ResourceQuotaNotFit"
_UNITS = ("MiB", "%")


MEANINGS = {
    "final": "A pod is placed where its share fits card and quota, and nowhere else.",
    "waits": "A pod whose share would be over the quota on every card waits, and is told so.",
    "refused": "A pod that no card could bring within the quota is not taken at all.",
    "within": "What the ledger counts for the namespace is never over its quota, of either kind.",
}


class Quota(NoPods):
    """The question, as the testbed runs it."""

    name = "quota"
    title = "What of a namespace's quota does a pod take that asks for a percentage?"
    parameters = Parameters
    #: A limit is asserted, the quota: without it the checks have to fail.
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    steps = ("pods come and go", "control: the same pods without a quota")

    def validate(self, parameters: Parameters) -> None:
        """Refuse steps that cannot be played, or whose outcome is left to chance."""
        for name in (*parameters.nodes, *parameters.pods):
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"name {name!r} cannot be used",
                    hint="use at most 22 lower-case letters, digits and dashes",
                )
        if not 1 <= len(parameters.nodes) <= 16 or min(parameters.nodes.values()) < 1:
            raise InputError("a case has 1 to 16 nodes, each with a card of some MiB")
        for name, ask in parameters.pods.items():
            if (ask.gpumem > 0) == (ask.percent > 0) or ask.gpumem < 0 or ask.percent > 100:
                raise InputError(f"pod {name} asks for MiB or for 1 to 100 percent, one of them")
            if not 0 <= ask.gpucores < 100:
                raise InputError(
                    f"pod {name} asks for {ask.gpucores} % of compute",
                    hint="0 to 99: who asks for 100 shares the card with nobody",
                )
        if min(parameters.quota_mib, parameters.quota_cores) < 0 or not (
            parameters.quota_mib or parameters.quota_cores
        ):
            raise InputError(
                "the namespace has no quota", hint="give quota_mib, quota_cores or both"
            )
        decided = [each for state in expected(parameters) for each in state.values()]
        if not {WAITS, REFUSES} & set(decided):
            raise InputError(
                "the quota keeps no pod away",
                why="then the control could not tell whether it holds",
                hint="submit a pod that would be over it",
            )

    def staging(self, parameters: Parameters, *, control: bool) -> Staging:
        """Return nodes, pods and steps; a control has no quota."""
        nodes = tuple(
            SimulatedNode(
                name=name,
                group="all",
                cards=cards_of(name, count=1, mem_mib=mib, model="NVIDIA A100-SXM4-80GB"),
            )
            for name, mib in parameters.nodes.items()
        )
        pods = tuple(
            StagedPod(
                name=name,
                group="all",
                manifest={
                    "metadata": {"annotations": {names.NODE_POLICY: "binpack"}},
                    "spec": {
                        "containers": [
                            staging.container(
                                "main",
                                mem_mib=ask.gpumem,
                                mem_pct=ask.percent,
                                core_pct=ask.gpucores,
                            )
                        ]
                    },
                },
            )
            for name, ask in parameters.pods.items()
        )
        moves = tuple(
            Move(kind=kind, pod=pod, then=tuple(name for name in state if name != pod))  # type: ignore[arg-type]
            for (kind, pod), state in zip(parsed(parameters), expected(parameters), strict=True)
        )
        hard = {
            f"limits.{resource}": str(bound)
            for resource, bound in (
                (names.RESOURCE_MEMORY, parameters.quota_mib),
                (names.RESOURCE_CORES, parameters.quota_cores),
            )
            if bound
        }
        return Staging(nodes=nodes, pods=pods, moves=moves, quota={} if control else hard)

    def rows(self, parameters: Parameters) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what each pod would take on each node, for people."""
        header = ("Pod", "Asks", "Compute", *(f"On {name}" for name in parameters.nodes))
        return header, [
            (
                name,
                f"{ask.gpumem:,} MiB" if ask.gpumem else f"{ask.percent} %",
                f"{ask.gpucores} %" if ask.gpucores else "-",
                *(f"{share(ask, mib):,} MiB" for mib in parameters.nodes.values()),
            )
            for name, ask in parameters.pods.items()
        ]

    def story(
        self, parameters: Parameters, trial: Trial
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what each step took of the quota, and what was decided."""
        looks = staging.snapshots(trial)
        rows = []
        for number, (step, state) in enumerate(
            zip(parameters.steps, expected(parameters), strict=True)
        ):
            used = _used(looks[number]) if number < len(looks) else (0, 0)
            said = [f"{pod} {_decided(trial, pod, number)[1]}" for pod in state]
            left = [
                f"{bound - taken:,} {unit}"
                for bound, taken, unit in zip(quota(parameters), used, _UNITS, strict=True)
                if bound
            ]
            taken = (
                f"{used[0]:,} MiB, {used[1]} %" if parameters.quota_cores else f"{used[0]:,} MiB"
            )
            rows.append((step, taken, ", ".join(left), "; ".join(said) or "-"))
        return ("Step", "Taken", "Left of the quota", "Decided"), rows

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Compare what was decided, and the ledger, with the arithmetic."""
        del control
        found = []
        free = unlimited(parameters)
        for number, state in enumerate(expected(parameters)):
            for pod, wanted in state.items():
                check = _judged(parameters, trial, number, pod, wanted)
                if check.name == "final" and pod in free[number]:
                    same = free[number][pod] == wanted
                    check = msgspec.structs.replace(check, control="pass" if same else "fail")
                found.append(check)
        return (*found, *_within(parameters, trial))

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods without a quota: whatever it holds must fail."""
        found = self.checks(parameters, trial)
        wrong = [f"{c.name} {c.pod}" for c in found if c.control not in ("any", c.verdict)]
        reason = f"the same without a quota: {', '.join(wrong)}" if wrong else ""
        return Control(verdict="fail" if wrong else "pass", checks=found, reason=reason)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return what the namespace took over time."""
        sides = []
        for one in (trial, control):
            if one is None:
                continue
            at = staging.times(one)
            used = [_used(look) for look in staging.snapshots(one)]
            memory, cores = quota(parameters)
            panels = [
                _panel("memory", "GiB", at, [mib / 1024 for mib, _ in used], memory / 1024),
                _panel("compute", "%", at, [float(pct) for _, pct in used], cores),
            ]
            title = "control: no quota" if one is control else "with the quota"
            seconds = max(at, default=0.0)
            sides.append(
                Side(
                    title=title,
                    control=one is control,
                    seconds=seconds,
                    panels=tuple(panels if cores else panels[:1]),
                )
            )
        return Chart(sides=tuple(sides))


def _within(parameters: Parameters, trial: Trial) -> list[Check]:
    """Compare what was ever promised with the quota, of each kind that it has."""
    looks = staging.snapshots(trial)
    complete = len(looks) == len(parameters.steps)
    found = []
    for place, (bound, unit) in enumerate(zip(quota(parameters), _UNITS, strict=True)):
        if not bound:
            continue
        most = max((_used(look)[place] for look in looks), default=0)
        held = complete and most <= bound
        over = f"{most:,} {unit} are promised, {bound:,} are the quota"
        found.append(
            Check(
                name="within",
                verdict="pass" if held else "fail",
                variant=("gpumem", "gpucores")[place] if parameters.quota_cores else "",
                asked=bound,
                card=most,
                unit=unit,
                source="ledger",
                reason="" if held else over if complete else "the ledger was not seen each time",
                # Where both are bounded, either may be what kept the pods away.
                control="any" if parameters.quota_mib and parameters.quota_cores else "fail",
            )
        )
    return found


def _panel(
    quantity: Literal["memory", "compute"],
    unit: str,
    at: Sequence[float],
    values: Sequence[float],
    bound: float,
) -> Panel:
    line = Line(
        label="namespace", times=tuple(at), values=tuple(round(value, 2) for value in values)
    )
    return Panel(
        quantity=quantity,
        title=f"{quantity} promised",
        unit=unit,
        lines=(line,),
        caps=(Cap(label="namespace", value=round(bound, 2)),) if bound else (),
    )


def _judged(parameters: Parameters, trial: Trial, number: int, pod: str, wanted: str) -> Check:
    got, said = _decided(trial, pod, number)
    words = {WAITS: NO_ROOM, REFUSES: REFUSED}.get(wanted, "")
    held = got == wanted and words in said
    return Check(
        name=wanted if words else "final",
        verdict="pass" if held else "fail",
        pod=pod,
        variant=f"{number + 1} {parameters.steps[number]}",
        asked=wanted if words else f"on {wanted}",
        card=got,
        source="api-server",
        reason="" if held else f"it {said}, not {wanted} {words}".rstrip(),
        control="fail" if words else "any",
    )


def _decided(trial: Trial, pod: str, number: int) -> tuple[str, str]:
    """Return what was decided on a pod by a step, as a word and for people."""
    event = staging.outcome(trial, pod, number)
    if event is None:
        return "unknown", "is not known"
    if event["event"] == "bound":
        return str(event["node"]), f"is on {event['node']}"
    word = WAITS if event["event"] == "waits" else REFUSES
    return word, f"{word}: {event.get('reason', '')}"


def _used(look: Mapping[str, staging.Taken]) -> tuple[int, int]:
    return sum(mib for _, mib, _ in look.values()), sum(pct for _, _, pct in look.values())


QUESTION = Quota()
