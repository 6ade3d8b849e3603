"""What does a pod hold of a card while its init containers run, and after?

Pure: says which pods come and go on one card, step by step, and works out by plain
arithmetic what the extender's ledger has to show after each step: init containers run one
after another, each beside the sidecars before it, then the app containers run beside all
sidecars; so the card must hold the larger of both, and only the latter once the init
containers are through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Cap, Chart, Line, Panel, Side
from testbed.lab.scenario import staging
from testbed.lab.scenario.question import NoPods, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.simulated import SimulatedNode, cards_of
from testbed.lab.scenario.staging import Move, StagedPod, Staging

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?")
_CARD = "node/0"
Kind = Literal["submit", "delete", "done"]


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MiB of each container of a pod; sidecars start before the other init containers."""

    apps: list[int]
    init: list[int] = []
    sidecars: list[int] = []


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods on one card, and what happens to them: ``submit POD``, ``done POD``, ``delete POD``."""

    pods: dict[str, Ask]
    steps: list[str]
    card_mib: int = 81050


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be after a step.

    Attributes:
        mib, slots: Taken of the card.
        decided: Pods on which the step decides: bound or waits.
    """

    mib: int
    slots: int
    decided: dict[str, str]


MEANINGS = {
    "ledger": "The ledger counts init peak or app sum, whichever is larger, and after init the"
    " app sum.",
    "decision": "A pod waits while the init peak holds the card, and moves up when it is over.",
}


class InitContainers(NoPods):
    """The question, as the testbed runs it."""

    name = "init_containers"
    title = "What does a pod hold of a card while its init containers run, and after?"
    parameters = Parameters
    #: A rule is asserted, as a limit is: where init never ends, the checks have to fail.
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    steps = ("pods come and go", "control: the same pods, whose init containers never end")

    def validate(self, parameters: Parameters) -> None:
        """Refuse steps that cannot be played, or show nothing."""
        for name, ask in parameters.pods.items():
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"pod name {name!r} cannot be used",
                    hint="use at most 22 lower-case letters, digits and dashes",
                )
            if not ask.apps or any(mib < 1 for mib in (*ask.apps, *ask.init, *ask.sidecars)):
                raise InputError(f"pod {name} has no app container, or one without memory")
        played = expected(parameters, told=True)
        if played == expected(parameters, told=False):
            raise InputError(
                "no step shows that init containers end",
                why="then the control could not tell whether the ledger follows",
                hint="add `done POD` for a pod whose init peak is above its app sum",
            )

    def staging(self, parameters: Parameters, *, control: bool) -> Staging:
        """Return the card, the pods and the steps; in a control nothing tells that init ends."""
        cards = cards_of(
            "node", count=1, mem_mib=parameters.card_mib, model="NVIDIA A100-SXM4-80GB"
        )
        states = expected(parameters, told=True)
        moves = []
        for (kind, pod), state in zip(_parsed(parameters), states, strict=True):
            then = tuple(name for name in state.decided if name != pod)
            played = "hold" if control and kind == "done" else kind
            moves.append(Move(kind=played, pod=pod, then=then))  # type: ignore[arg-type]
        return Staging(
            nodes=(SimulatedNode(name="node", group="one", cards=cards),),
            pods=tuple(
                StagedPod(name=name, group="one", manifest=manifest(ask))
                for name, ask in parameters.pods.items()
            ),
            moves=tuple(moves),
        )

    def rows(self, parameters: Parameters) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return what each pod holds, for people."""
        header = ("Pod", "Init", "Sidecars", "Apps", "While init runs", "After")
        return header, [
            (
                name, _listed(ask.init), _listed(ask.sidecars), _listed(ask.apps),
                f"{charge(ask, done=False)[0]:,} MiB", f"{charge(ask, done=True)[0]:,} MiB",
            )
            for name, ask in parameters.pods.items()
        ]  # fmt: skip

    def story(
        self, parameters: Parameters, trial: Trial
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the ledger after each step, and what was decided."""
        looks = staging.snapshots(trial)
        rows = []
        for number, step in enumerate(parameters.steps):
            found = looks[number].get(_CARD, (0, 0, 0)) if number < len(looks) else (0, 0, 0)
            said = [
                f"{pod} {_decided(trial, pod, number)}"
                for pod in expected(parameters, told=True)[number].decided
            ]
            left = parameters.card_mib - found[1]
            rows.append((step, f"{found[1]:,} MiB", f"{left:,} MiB", "; ".join(said) or "-"))
        return ("Step", "Promised", "Left", "Decided"), rows

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Compare the ledger with the arithmetic after each step."""
        del control
        found: list[Check] = []
        looks = staging.snapshots(trial)
        held, never = expected(parameters, told=True), expected(parameters, told=False)
        for number, (state, other) in enumerate(zip(held, never, strict=True)):
            label = f"{number + 1} {parameters.steps[number]}"
            slots, mib = -1, -1
            if number < len(looks):
                slots, mib, _ = looks[number].get(_CARD, (-1, -1, -1))
            same = (mib, slots) == (state.mib, state.slots)
            differs = (other.mib, other.slots) != (state.mib, state.slots)
            found.append(
                Check(
                    name="ledger",
                    verdict="pass" if same else "fail",
                    variant=label,
                    asked=state.mib,
                    card=mib,
                    unit="MiB",
                    source="ledger",
                    reason=""
                    if same
                    else f"{mib} MiB and {slots} slots are taken, not {state.mib} and"
                    f" {state.slots}",
                    control="fail" if differs else "pass",
                )
            )
            for pod, wanted in state.decided.items():
                event = staging.outcome(trial, pod, number)
                got = "unknown" if event is None else str(event["event"])
                why = "" if event is None else str(event.get("reason", ""))
                found.append(
                    Check(
                        name="decision",
                        verdict="pass" if got == wanted else "fail",
                        pod=pod,
                        variant=label,
                        asked=wanted,
                        card=got,
                        source="api-server",
                        reason="" if got == wanted else f"it {got}, not {wanted}: {why}",
                        control="pass" if other.decided.get(pod, "waits") == wanted else "fail",
                    )
                )
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods where nothing tells that init ended."""
        found = self.checks(parameters, trial)
        wrong = [f"{c.name} {c.variant}" for c in found if c.verdict != c.control]
        reason = f"not as it must be where init never ends: {', '.join(wrong)}" if wrong else ""
        return Control(verdict="fail" if wrong else "pass", checks=found, reason=reason)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return the ledger over time."""
        return Chart(
            sides=tuple(
                _side(parameters, one, control=one is control)
                for one in (trial, control)
                if one is not None
            )
        )


def charge(ask: Ask, *, done: bool) -> tuple[int, int]:
    """Return MiB and slots that a pod holds of the card."""
    beside, slots = sum(ask.sidecars), len(ask.sidecars)
    after = (beside + sum(ask.apps), slots + len(ask.apps))
    if done or not ask.init:
        return after
    return max(after[0], beside + max(ask.init)), max(after[1], slots + 1)


def expected(parameters: Parameters, *, told: bool) -> list[State]:
    """Work out the card after each step.

    Args:
        parameters: Of the case.
        told: Whether it is told that init containers ended.

    Raises:
        InputError: a step cannot be played, or which pod moves up is left to chance.
    """
    held: dict[str, tuple[int, int]] = {}
    waiting: list[str] = []
    known: set[str] = set()
    found = []

    def fits(pod: str) -> bool:
        need = charge(parameters.pods[pod], done=False)
        return sum(mib for mib, _ in held.values()) + need[0] <= parameters.card_mib

    for kind, pod in _parsed(parameters):
        decided: dict[str, str] = {}
        if (kind == "submit") == (pod in known) or (kind == "done" and told and pod not in held):
            raise InputError(
                f"step {kind} {pod} cannot be played",
                why="a pod is submitted once, and its init containers end where it is bound",
            )
        if kind == "submit":
            known.add(pod)
            decided[pod] = "bound" if fits(pod) else "waits"
            if fits(pod):
                held[pod] = charge(parameters.pods[pod], done=False)
            else:
                waiting.append(pod)
        elif kind == "delete":
            held.pop(pod, None)
            waiting = [name for name in waiting if name != pod]
        elif told:
            held[pod] = charge(parameters.pods[pod], done=True)
        if kind != "submit":
            able = [name for name in waiting if fits(name)]
            if len(able) > 1:
                raise InputError(f"after {kind} {pod} it is left to chance who moves up: {able}")
            for name in able:
                waiting.remove(name)
                held[name] = charge(parameters.pods[name], done=False)
                decided[name] = "bound"
        mib = sum(each for each, _ in held.values())
        slots = sum(each for _, each in held.values())
        found.append(State(mib=mib, slots=slots, decided=decided))
    return found


def manifest(ask: Ask) -> dict[str, Any]:
    """Return a pod, without a name."""
    before = [
        {**staging.container(f"sidecar-{at}", mem_mib=mib), "restartPolicy": "Always"}
        for at, mib in enumerate(ask.sidecars)
    ]
    before += [staging.container(f"init-{at}", mem_mib=mib) for at, mib in enumerate(ask.init)]
    apps = [staging.container(f"app-{at}", mem_mib=mib) for at, mib in enumerate(ask.apps)]
    return {"spec": {"initContainers": before, "containers": apps}}


def _parsed(parameters: Parameters) -> list[tuple[Kind, str]]:
    found: list[tuple[Kind, str]] = []
    for step in parameters.steps:
        kind, _, pod = step.partition(" ")
        if kind not in ("submit", "delete", "done") or pod not in parameters.pods:
            raise InputError(
                f"step {step!r} is not known", hint="write submit, done or delete, and a pod"
            )
        found.append((kind, pod))
    return found


def _decided(trial: Trial, pod: str, number: int) -> str:
    event = staging.outcome(trial, pod, number)
    if event is None:
        return "is not known"
    return f"{event['event']}: {event['reason']}" if event.get("reason") else str(event["event"])


def _listed(values: Sequence[int]) -> str:
    return " + ".join(f"{mib:,}" for mib in values) or "-"


def _side(parameters: Parameters, trial: Trial, *, control: bool) -> Side:
    at = staging.times(trial)
    looks = staging.snapshots(trial)
    states = expected(parameters, told=True)
    lines = (
        Line(
            label="ledger",
            times=tuple(at),
            values=tuple(round(look.get(_CARD, (0, 0, 0))[1] / 1024, 2) for look in looks),
        ),
        Line(
            label="arithmetic",
            times=tuple(at),
            values=tuple(round(state.mib / 1024, 2) for state in states[: len(at)]),
        ),
    )
    cap = Cap(label="ledger", value=round(parameters.card_mib / 1024, 2))
    panel = Panel(
        quantity="memory", title="memory promised of the card", unit="GiB", lines=lines, caps=(cap,)
    )
    title = "control: init never ends" if control else "the ledger over time"
    return Side(title=title, control=control, seconds=max(at, default=0.0), panels=(panel,))


QUESTION = InitContainers()
