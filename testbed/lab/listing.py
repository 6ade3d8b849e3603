"""What a case asserts, asks for and needs, without running it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.lab.scenario.cases import Case, checked_parameters, load_parameters, load_question
from testbed.lab.scenario.question import PodPlan, Question
from testbed.stack import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A case as ``testbed ls`` shows it.

    Attributes:
        case: ``question/case``.
        question: The question's name.
        title: The question itself, in words.
        path: The file of parameters.
        pods: By pod and container: the resource limits.
        cards: How many cards one node must have; 0 where nobody knows.
        asserts_limit: Whether a control without the limiter must fail.
        asserts: Names of the checks that can come out of it; empty where nobody knows.
        problem: Why it cannot run.
    """

    case: str
    question: str
    title: str
    path: Path
    pods: dict[str, dict[str, dict[str, str]]]
    cards: int
    asserts_limit: bool
    asserts: tuple[str, ...] = ()
    problem: str = ""

    @property
    def needs_text(self) -> str:
        return f"{self.cards} card{'s' if self.cards > 1 else ''}" if self.cards else "-"

    @property
    def pods_text(self) -> str:
        """``a 30,720 MiB 50 %, b 20,480 MiB 30 %``; containers of a pod joined by ``+``."""
        return ", ".join(
            f"{pod} " + " + ".join(_ask(limits) for limits in containers.values())
            for pod, containers in self.pods.items()
        )

    @property
    def asserts_text(self) -> str:
        what = " ".join(self.asserts) or ("limits" if self.asserts_limit else "rules")
        return what + (" (with control)" if self.asserts_limit else "")


def listed(case: Case) -> Listed:
    """Return what there is to know of a case; a case that cannot run says why."""
    title, cards, asserts_limit, problem = "", 0, False, ""
    pods: dict[str, dict[str, dict[str, str]]] = {}
    asserts: tuple[str, ...] = ()
    try:
        question = load_question(case.folder)
        title, asserts_limit = question.title, question.asserts_limit
        parameters = checked_parameters(question, load_parameters(case.path))
        pods = {plan.name: _limits(plan) for plan in question.plan(parameters)}
        cards = _cards(question, parameters, pods)
        asserts = _asserts(question, parameters)
    except TestbedError as error:
        problem = error.what if not error.why else f"{error.what}: {error.why}"
    return Listed(
        case=str(case),
        question=case.question,
        title=title or case.question,
        path=case.path,
        pods=pods,
        cards=cards,
        asserts_limit=asserts_limit,
        asserts=asserts,
        problem=problem,
    )


def cards_needed(cases: tuple[Case, ...]) -> int:
    """Return how many cards one node must have for the most demanding of the cases."""
    return max((listed(case).cards for case in cases), default=1) or 1


def _limits(plan: PodPlan) -> dict[str, dict[str, str]]:
    return {container.name: dict(container.limits) for container in plan.containers}


def _cards(question: Question, parameters: Any, pods: dict[str, dict[str, dict[str, str]]]) -> int:
    needs = getattr(question, "needs", None)
    if needs is not None:
        return int(needs(parameters))
    # A pod's containers may share cards, so the largest decides.
    return max(
        (
            int(limits.get(names.RESOURCE_COUNT, "0"))
            for containers in pods.values()
            for limits in containers.values()
        ),
        default=0,
    )


def _asserts(question: Question, parameters: Any) -> tuple[str, ...]:
    asserts = getattr(question, "asserts", None)
    return tuple(asserts(parameters)) if asserts is not None else ()


def _ask(limits: dict[str, str]) -> str:
    words = []
    count = limits.get(names.RESOURCE_COUNT, "0")
    if count not in ("0", "1"):
        words.append(f"{count} cards")
    if mib := limits.get(names.RESOURCE_MEMORY):
        words.append(f"{int(mib):,} MiB" if mib.isdecimal() else mib)
    if percent := limits.get(names.RESOURCE_MEMORY_PERCENTAGE):
        words.append(f"{percent} % of memory")
    if cores := limits.get(names.RESOURCE_CORES):
        words.append(f"{cores} %")
    return " ".join(words) or "no card"
