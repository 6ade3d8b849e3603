"""What of a namespace's quota does a pod take that asks for a percentage?

Pure: says which pods come and go on nodes whose cards differ, and works out by plain
arithmetic where each may lie: what counts is what the pod gets in the end, so the same
percentage of a smaller card takes less of the quota.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Cap, Chart, Line, Panel, Side
from testbed.lab.scenario import staging
from testbed.lab.scenario.question import PodPlan, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.simulated import SimulatedNode, cards_of
from testbed.lab.scenario.staging import Move, StagedPod, Staging
from testbed.stack import names

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?")
REFUSED = "exceeding resource quota"
NO_ROOM = "ResourceQuotaNotFit"
#: Grades that are nearer to each other are taken for equal: percentages are rounded.
_APART = 0.01


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pod asks for of one card: MiB, or percent of its memory."""

    gpumem: int = 0
    percent: int = 0


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of one card each, by its MiB; the quota; pods; ``submit POD`` and ``delete POD``."""

    nodes: dict[str, int]
    quota_mib: int
    pods: dict[str, Ask]
    steps: list[str]


#: What is decided on a pod: a node's name, or one of these.
WAITS, REFUSES = "waits", "refused"

MEANINGS = {
    "final": "A pod is placed where its share fits card and quota, and nowhere else.",
    "waits": "A pod whose share would be over the quota on every card waits, and is told so.",
    "refused": "A pod that no card could bring within the quota is not taken at all.",
    "within": "What the ledger counts for the namespace is never over its quota.",
}


class Quota:
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
        decided = [each for state in expected(parameters) for each in state.values()]
        if not {WAITS, REFUSES} & set(decided):
            raise InputError(
                "the quota keeps no pod away",
                why="then the control could not tell whether it holds",
                hint="submit a pod that would be over it",
            )

    def plan(self, parameters: Parameters) -> Sequence[PodPlan]:
        """Return nothing: no pod runs."""
        del parameters
        return ()

    def needs(self, parameters: Parameters) -> int:
        """Return how many real cards one node must have: none is used, one is there."""
        del parameters
        return 1

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
                            staging.container("main", mem_mib=ask.gpumem, mem_pct=ask.percent)
                        ]
                    },
                },
            )
            for name, ask in parameters.pods.items()
        )
        moves = tuple(
            Move(kind=kind, pod=pod, then=tuple(name for name in state if name != pod))  # type: ignore[arg-type]
            for (kind, pod), state in zip(_parsed(parameters), expected(parameters), strict=True)
        )
        hard = {f"limits.{names.RESOURCE_MEMORY}": str(parameters.quota_mib)}
        return Staging(nodes=nodes, pods=pods, moves=moves, quota={} if control else hard)

    def rows(self, parameters: Parameters) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what each pod would take on each node, for people."""
        header = ("Pod", "Asks", *(f"On {name}" for name in parameters.nodes))
        return header, [
            (
                name,
                f"{ask.gpumem:,} MiB" if ask.gpumem else f"{ask.percent} %",
                *(f"{_share(ask, mib):,} MiB" for mib in parameters.nodes.values()),
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
            used = _used(looks[number]) if number < len(looks) else 0
            said = [f"{pod} {_decided(trial, pod, number)[1]}" for pod in state]
            left = f"{parameters.quota_mib - used:,} MiB"
            rows.append((step, f"{used:,} MiB", left, "; ".join(said) or "-"))
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
        used = [_used(look) for look in staging.snapshots(trial)]
        complete = len(used) == len(parameters.steps)
        most = max(used, default=0)
        held = complete and most <= parameters.quota_mib
        over = f"{most:,} MiB are promised, {parameters.quota_mib:,} are the quota"
        found.append(
            Check(
                name="within",
                verdict="pass" if held else "fail",
                asked=parameters.quota_mib,
                card=most,
                unit="MiB",
                source="ledger",
                reason="" if held else over if complete else "the ledger was not seen each time",
                control="fail",
            )
        )
        return tuple(found)

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
            values = tuple(round(_used(look) / 1024, 2) for look in staging.snapshots(one))
            line = Line(label="namespace", times=tuple(at), values=values)
            cap = Cap(label="namespace", value=round(parameters.quota_mib / 1024, 2))
            panel = Panel(
                quantity="memory", title="memory promised", unit="GiB", lines=(line,), caps=(cap,)
            )
            title = "control: no quota" if one is control else "with the quota"
            seconds = max(at, default=0.0)
            sides.append(
                Side(title=title, control=one is control, seconds=seconds, panels=(panel,))
            )
        return Chart(sides=tuple(sides))


def expected(parameters: Parameters) -> list[dict[str, str]]:
    """Work out what each step decides: by pod a node's name, ``waits`` or ``refused``.

    Raises:
        InputError: a step cannot be played, or two outcomes would do.
    """
    held: dict[str, tuple[str, int]] = {}
    waiting: list[str] = []
    known: set[str] = set()
    found = []

    def able(pod: str) -> str:
        """Return the node that the pod fits, nothing where it fits none."""
        ask = parameters.pods[pod]
        left = parameters.quota_mib - sum(mib for _, mib in held.values())
        fits = []
        for node, size in parameters.nodes.items():
            need = _share(ask, size)
            free = size - sum(mib for where, mib in held.values() if where == node)
            if need <= min(left, free):
                fits.append(node)
        if len(fits) > 1:
            raise InputError(f"pod {pod} fits {' and '.join(fits)}: the case leaves it to chance")
        return "".join(fits)

    for kind, pod in _parsed(parameters):
        decided: dict[str, str] = {}
        if (kind == "submit") == (pod in known):
            raise InputError(f"step {kind} {pod} cannot be played", why="each pod comes once")
        if kind == "submit":
            known.add(pod)
            left = parameters.quota_mib - sum(mib for _, mib in held.values())
            decided[pod] = able(pod) or (REFUSES if parameters.pods[pod].gpumem > left else WAITS)
            candidates = [pod]
        else:
            held.pop(pod, None)
            waiting = [name for name in waiting if name != pod]
            candidates = [name for name in waiting if able(name)]
            if len(candidates) > 1:
                raise InputError(f"after {kind} {pod} it is left to chance who moves up")
            decided = {name: able(name) for name in candidates}
        for name in candidates:
            if decided[name] == WAITS:
                waiting.append(name)
            elif decided[name] != REFUSES:
                waiting = [each for each in waiting if each != name]
                node = decided[name]
                held[name] = (node, _share(parameters.pods[name], parameters.nodes[node]))
        found.append(decided)
    return found


def unlimited(parameters: Parameters) -> list[dict[str, str]]:
    """Work out where pods lie without a quota: on the fullest card that has room (binpack).

    From the first pod on that waits, or that could as well lie elsewhere, nothing is said.
    """
    held: dict[str, tuple[str, int]] = {}
    found: list[dict[str, str]] = []
    sure = True
    for kind, pod in _parsed(parameters):
        found.append({})
        if kind == "delete":
            held.pop(pod, None)
            continue
        grades: dict[str, float] = {}
        for node, size in parameters.nodes.items():
            there = [mib for where, mib in held.values() if where == node]
            taken = sum(there) + _share(parameters.pods[pod], size)
            if taken <= size:
                grades[node] = (len(there) + 1) / 10 + taken / size
        best = sorted(grades.values(), reverse=True)
        sure = sure and bool(best) and (len(best) == 1 or best[0] - best[1] > _APART)
        if sure:
            node = max(grades, key=grades.__getitem__)
            held[pod] = (node, _share(parameters.pods[pod], parameters.nodes[node]))
            found[-1][pod] = node
    return found


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


def _share(ask: Ask, card_mib: int) -> int:
    return ask.gpumem or card_mib * ask.percent // 100


def _used(look: Mapping[str, staging.Taken]) -> int:
    return sum(mib for _, mib, _ in look.values())


def _parsed(parameters: Parameters) -> list[tuple[str, str]]:
    found = []
    for step in parameters.steps:
        kind, _, pod = step.partition(" ")
        if kind not in ("submit", "delete") or pod not in parameters.pods:
            raise InputError(
                f"step {step!r} is not known", hint="write submit or delete, and a pod"
            )
        found.append((kind, pod))
    return found


QUESTION = Quota()
