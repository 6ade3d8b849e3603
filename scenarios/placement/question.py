"""Which card does a pod get, and why does another wait?

Pure: says which pods are placed under which policy, each policy on nodes of its own, and
judges what the extender's ledger showed after each pod. The policies are written down here
once more, as plain rules over one look at the cards: what the extender decided and what
the rule says are two answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby
from typing import Any, ClassVar

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Chart, Line, Panel, Side
from testbed.lab.scenario import staging
from testbed.lab.scenario.question import NoPods, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.simulated import SimulatedNode, cards_of
from testbed.lab.scenario.staging import Move, StagedPod, Staging, Taken
from testbed.stack import names, policy

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?")
_LINK = re.compile(r"(\d{1,2})-(\d{1,2})")
_LINKED = "topology-aware"
_SHADES = " ░▒▓█"
#: Fullness is a sum of three quotients.
_EQUAL = 1e-9


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How cards and nodes are chosen, and the other policy that the control has instead."""

    card: str
    node: str = "binpack"
    control_card: str
    control_node: str = "binpack"
    waits: dict[str, str] = {}  # pods that do not fit under it, with words of the reason


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pod asks for: cards, and of each MiB and percent."""

    gpumem: int
    gpucores: int
    cards: int = 1


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes for each policy, and the pods that each is given, in the given order."""

    policies: dict[str, Policy]
    pods: dict[str, Ask]
    order: list[str]  # a mapping's is lost on its way through a notebook
    nodes: int = 2
    cards: int = 4
    card_mib: int = 81050
    #: What links between a node's cards are worth, ``0-1`` by their indices; others nothing.
    links: dict[str, int] = {}


MEANINGS = {
    "placed": "Each pod that fits is bound, on as many cards as it asked for.",
    "books": "The ledger counts on each card just what the pods' annotations promise of it.",
    "policy": "Of the cards and nodes that could take it, each pod got those its policy names.",
    "waits": "The pod that does not fit under this policy waits, and is told why.",
}


class Placement(NoPods):
    """The question, as the testbed runs it."""

    name = "placement"
    title = "Which card does a pod get, and why does another wait?"
    parameters = Parameters
    #: A rule is asserted, as a limit is: without the policy its checks have to fail.
    asserts_limit = True
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    steps = ("pods are placed", "control: the same pods under another policy")

    def validate(self, parameters: Parameters) -> None:
        """Refuse policies and pods that no trial could show."""
        if not parameters.policies or not parameters.pods:
            raise InputError("the case has no policies or no pods", hint="name one of each")
        for name in (*parameters.policies, *parameters.pods):
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"name {name!r} cannot be used",
                    hint="use at most 22 lower-case letters, digits and dashes",
                )
        if sorted(parameters.order) != sorted(parameters.pods):
            raise InputError("`order` does not name each pod once", hint="list all below `pods:`")
        if not 1 <= parameters.nodes <= 8 or not 1 <= parameters.cards <= 16:
            raise InputError("a case has 1 to 8 nodes of 1 to 16 cards for each policy")
        for name, one in parameters.policies.items():
            for words in (one.card, one.control_card):
                policy.card_policy(words, f"policy {name}")
            for word in (one.node, one.control_node):
                policy.node_policy(word, f"policy {name}")
            if (one.card, one.node) == (one.control_card, one.control_node):
                raise InputError(
                    f"policy {name} is the same in the control",
                    why="then the control could not tell whether it is followed",
                )
            if _LINKED in one.card.split(","):
                if not parameters.links:
                    raise InputError(f"policy {name} looks at links, and the case has none")
                if {"binpack", "spread"} & set(one.card.split(",")):
                    raise InputError(
                        f"policy {name}: links and fullness together are not judged",
                        hint=f"use {_LINKED}, alone or with mutex or numa",
                    )
            if unknown := set(one.waits) - set(parameters.pods):
                raise InputError(f"policy {name}: no pod {', '.join(sorted(unknown))}")
        for key, worth in parameters.links.items():
            ends = _ends(key)
            if ends is None or not ends[0] < ends[1] < parameters.cards or worth < 0:
                raise InputError(
                    f"link {key!r} of worth {worth} cannot be used",
                    hint="name two cards of a node, such as 0-1, the lower one first",
                )
        for name, ask in parameters.pods.items():
            if not 1 <= ask.cards <= parameters.cards or not 1 <= ask.gpucores <= 100:
                raise InputError(
                    f"pod {name} asks for {ask.cards} cards, {ask.gpucores} %",
                    hint=f"1 to {parameters.cards} cards, 1 to 100 percent of each",
                )
            if not 1 <= ask.gpumem <= parameters.card_mib:
                raise InputError(f"pod {name}: no card has {ask.gpumem} MiB")

    def staging(self, parameters: Parameters, *, control: bool) -> Staging:
        """Return nodes and pods of all policies, one policy after the other."""
        nodes, pods = [], []
        for name, one in parameters.policies.items():
            card = one.control_card if control else one.card
            node = one.control_node if control else one.node
            for number in range(parameters.nodes):
                own = f"{name}-{number}"
                cards = cards_of(
                    own,
                    count=parameters.cards,
                    mem_mib=parameters.card_mib,
                    model="NVIDIA A100-SXM4-80GB",
                )
                links = tuple((*_pair(key), worth) for key, worth in parameters.links.items())
                nodes.append(SimulatedNode(name=own, group=name, cards=cards, links=links))
            for pod in parameters.order:
                ask = parameters.pods[pod]
                container = staging.container(
                    "main", mem_mib=ask.gpumem, core_pct=ask.gpucores, cards=ask.cards
                )
                notes = {names.CARD_POLICY: card, names.NODE_POLICY: node}
                manifest = {"metadata": {"annotations": notes}, "spec": {"containers": [container]}}
                pods.append(StagedPod(name=f"{name}-{pod}", group=name, manifest=manifest))
        moves = tuple(Move(kind="submit", pod=pod.name) for pod in pods)
        return Staging(nodes=tuple(nodes), pods=tuple(pods), moves=moves)

    def rows(self, parameters: Parameters) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the pods, and under which policies they wait, for people."""
        header = ("Pod", "Cards", "MiB of each", "Cores of each", "Waits under")
        rows = [
            (
                name, str(ask.cards), f"{ask.gpumem:,}", f"{ask.gpucores} %",
                ", ".join(key for key, one in parameters.policies.items() if name in one.waits)
                or "-",
            )
            for name, ask in ((name, parameters.pods[name]) for name in parameters.order)
        ]  # fmt: skip
        return header, rows

    def story(
        self, parameters: Parameters, trial: Trial
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the heat map: of each card, after each pod, memory and cores in percent."""
        header = ("Policy", "After pod", *(
            f"{number}/{index}" for number in range(parameters.nodes)
            for index in range(parameters.cards)
        ), "Outcome")  # fmt: skip
        rows = []
        for name, pod, _, after, event in _steps(parameters, trial):
            own = [taken for label, taken in after.items() if label.startswith(f"{name}-")]
            heat = [_heat(taken, parameters.card_mib) for taken in own]
            rows.append((name, pod, *heat, _said(trial, event)))
        return header, rows

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge each policy by all its pods."""
        del control
        found: list[Check] = []
        steps = _steps(parameters, trial)
        for name, own in groupby(steps, key=lambda step: step[0]):
            found += _judged(name, parameters, trial, list(own))
        return tuple(found)

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods under another policy: the policy's check must fail."""
        found = self.checks(parameters, trial)
        wrong = [
            f"{c.variant} {c.name}" for c in found if c.control != "any" and c.control != c.verdict
        ]
        reason = f"not as it must be under another policy: {', '.join(wrong)}" if wrong else ""
        return Control(verdict="fail" if wrong else "pass", checks=found, reason=reason)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return memory and cores of each card over time, a side for each policy.

        The control, under other policies, would only make the picture unreadable.
        """
        del control
        sides = []
        begin, steps = staging.times(trial), _steps(parameters, trial)
        for name in parameters.policies:
            rows = [(at, s[3]) for at, s in zip(begin, steps, strict=False) if s[0] == name]
            first = rows[0][0] if rows else 0.0
            sides.append(
                _side(name, parameters, [(round(at - first, 3), look) for at, look in rows])
            )
        return Chart(sides=tuple(sides))


Looks = Mapping[str, Taken]
_Step = tuple[str, str, Looks, Looks, Mapping[str, Any] | None]


def _steps(parameters: Parameters, trial: Trial) -> list[_Step]:
    """Return policy, pod, cards before and after, and what was decided, move by move."""
    order = [(name, pod) for name in parameters.policies for pod in parameters.order]
    looks = staging.snapshots(trial)
    found: list[_Step] = []
    for number, (name, pod) in enumerate(order):
        after = looks[number] if number < len(looks) else {}
        before = looks[number - 1] if 0 < number <= len(looks) else dict.fromkeys(after, (0, 0, 0))
        event = staging.outcome(trial, f"{name}-{pod}", number)
        found.append((name, pod, before, after, event))
    return found


def _judged(name: str, parameters: Parameters, trial: Trial, steps: Sequence[_Step]) -> list[Check]:
    one = parameters.policies[name]
    placed, books, ruled, waits = [], [], [], []
    for _, pod, before, after, event in steps:
        ask = parameters.pods[pod]
        own = {k: v for k, v in before.items() if k.startswith(f"{name}-")}
        if pod in one.waits:
            said = "" if event is None else str(event.get("reason", ""))
            if event is None or event["event"] != "waits":
                waits.append(f"{pod}: {_said(trial, event)}")
            elif one.waits[pod] not in said:
                waits.append(f"{pod}: the reason does not say {one.waits[pod]!r}: {said}")
            continue
        if event is None or event["event"] != "bound":
            placed.append(f"{pod}: {_said(trial, event)}")
            continue
        given = staging.places(trial, event)
        if len(given) != ask.cards or not set(given) <= set(own):
            placed.append(f"{pod}: was given {', '.join(given) or 'nothing'}")
            continue
        expected = {
            label: _plus(taken, ask) if label in given else taken for label, taken in before.items()
        }
        if expected != after:
            books.append(f"{pod}: the ledger has {_differences(expected, after)}")
        broken = broken_rule(one.card, one.node, own, given, ask, parameters)
        if broken:
            ruled.append(f"{pod}: {broken}")
    return [
        _check("placed", name, one, placed, "any"),
        _check("books", name, one, books, "pass"),
        _check("policy", name, one, ruled, "fail"),
        *([_check("waits", name, one, waits, "any")] if one.waits else []),
    ]


def _check(kind: str, name: str, one: Policy, wrong: Sequence[str], control: Any) -> Check:
    return Check(
        name=kind,
        verdict="fail" if wrong else "pass",
        variant=name,
        asked=f"cards {one.card}, nodes {one.node}",
        source="ledger",
        reason="; ".join(wrong),
        control=control,
    )


def broken_rule(
    card: str, node: str, before: Looks, given: Sequence[str], ask: Ask, parameters: Parameters
) -> str:
    """Return how a choice is not what a policy names; empty where it is.

    Args:
        card: Chain of words for cards.
        node: Word for nodes.
        before: What was taken of each card of the policy's nodes.
        given: The cards that were chosen.
        ask: What was asked for.
        parameters: The size of cards and nodes.
    """
    words = card.split(",")
    free = {
        label: _grade(taken, ask, parameters.card_mib)
        for label, taken in before.items()
        if _fits(taken, ask, parameters.card_mib) and not ("mutex" in words and any(taken))
    }
    own = given[0].partition("/")[0]
    by_node = {
        key: [label for label in free if label.partition("/")[0] == key]
        for key in {label.partition("/")[0] for label in before}
    }
    if "mutex" in words and (used := [label for label in given if any(before[label])]):
        return f"{', '.join(used)} had a user"
    if missing := [label for label in given if label not in free]:
        return f"{', '.join(missing)} had no room"
    able = {
        key: sum(_grade(taken, None, parameters.card_mib) for label, taken in before.items()
                 if label.partition("/")[0] == key)
        for key, labels in by_node.items() if len(labels) >= ask.cards
    }  # fmt: skip
    best = max(able.values()) if node == "binpack" else min(able.values())
    if abs(able[own] - best) > _EQUAL:
        return f"node {own} is not the {'fullest' if node == 'binpack' else 'emptiest'} that fits"
    pool = by_node[own]
    if "numa" in words:
        halves = [[la for la in pool if _numa(la, parameters.cards) == half] for half in (0, 1)]
        whole = [half for half in halves if len(half) >= ask.cards]
        if whole:
            pool = next((half for half in whole if set(given) <= set(half)), [])
            if not pool:
                return f"{', '.join(given)} lie on two NUMA nodes, and one had enough cards"
    if _LINKED in words:
        return _not_best_linked(given, pool, parameters)
    rest = [free[label] for label in pool if label not in given]
    grades = [free[label] for label in given]
    if rest and "binpack" in words and min(grades) < max(rest) - _EQUAL:
        return f"{', '.join(given)}: a fuller card could take it"
    if rest and "spread" in words and max(grades) > min(rest) + _EQUAL:
        return f"{', '.join(given)}: an emptier card could take it"
    return ""


def _not_best_linked(given: Sequence[str], pool: Sequence[str], parameters: Parameters) -> str:
    """Return how cards are not those with the best links; one card alone has the worst."""
    if len(given) == 1:
        worths = {one: sum(_worth(one, label, parameters) for label in pool) for one in pool}
        if worths[given[0]] > min(worths.values()):
            return f"{given[0]}: a card with worse links could take it"
        return ""

    def worth(cards: Sequence[str]) -> int:
        return sum(_worth(one, other, parameters) for one, other in combinations(cards, 2))

    if worth(given) < max(map(worth, combinations(pool, len(given)))):
        return f"{', '.join(given)}: cards with better links could take it"
    return ""


def _worth(one: str, other: str, parameters: Parameters) -> int:
    ends = sorted(int(label.rpartition("/")[2]) for label in (one, other))
    return parameters.links.get(f"{ends[0]}-{ends[1]}", 0)


def _ends(key: str) -> tuple[int, int] | None:
    found = _LINK.fullmatch(key)
    return (int(found[1]), int(found[2])) if found else None


def _pair(key: str) -> tuple[int, int]:
    one, _, other = key.partition("-")
    return int(one), int(other)


def _fits(taken: Taken, ask: Ask, card_mib: int) -> bool:
    slots, mem, cores = taken
    whole = ask.gpucores == 100 and slots > 0
    return (
        slots < 10
        and mem + ask.gpumem <= card_mib
        and cores + ask.gpucores <= 100
        and not whole
        and cores < 100
    )


def _grade(taken: Taken, ask: Ask | None, card_mib: int) -> float:
    """Return how full a card is, with the pod on it: HAMi's three quotients (HAMi #1699)."""
    slots, mem, cores = _plus(taken, ask) if ask else taken
    return slots / 10 + mem / card_mib + cores / 100


def _plus(taken: Taken, ask: Ask) -> Taken:
    return (taken[0] + 1, taken[1] + ask.gpumem, taken[2] + ask.gpucores)


def _numa(label: str, cards: int) -> int:
    return 2 * int(label.rpartition("/")[2]) // cards


def _differences(expected: Looks, after: Looks) -> str:
    return ", ".join(
        f"{label} {after.get(label)}, not {expected.get(label)}"
        for label in sorted({*expected, *after})
        if expected.get(label) != after.get(label)
    )


def _heat(taken: Taken, card_mib: int) -> str:
    _, mem, cores = taken
    share = 100 * mem / card_mib
    shades = "".join(_SHADES[min(4, -int(-part // 25))] for part in (share, cores))
    return f"{shades} {share:.0f}/{cores}"


def _said(trial: Trial, event: Mapping[str, Any] | None) -> str:
    if event is None:
        return "nothing is known of it"
    if event["event"] == "bound":
        return ", ".join(staging.places(trial, event))
    return f"{event['event']}: {event.get('reason', '')}"


def _side(name: str, parameters: Parameters, rows: Sequence[tuple[float, Looks]]) -> Side:
    labels = [
        f"{number}/{index}"
        for number in range(parameters.nodes)
        for index in range(parameters.cards)
    ]

    def panel(quantity: str, title: str, unit: str, place: int, full: int) -> Panel:
        lines = tuple(
            Line(
                label=label,
                times=tuple(at for at, _ in rows),
                values=tuple(
                    round(100 * look.get(f"{name}-{label}", (0, 0, 0))[place] / full, 1)
                    for _, look in rows
                ),
            )
            for label in labels
        )
        return Panel(quantity=quantity, title=title, unit=unit, lines=lines)

    one = parameters.policies[name]
    return Side(
        title=f"{name} (cards {one.card}, nodes {one.node})",
        control=False,
        seconds=max([at for at, _ in rows], default=0.0),
        panels=(
            panel("memory", "memory promised", "%", 1, parameters.card_mib),
            panel("compute", "cores promised", "%", 2, 100),
        ),
    )


QUESTION = Placement()
