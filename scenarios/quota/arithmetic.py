"""Who fits where, by plain arithmetic: of cards, and of a namespace's quota."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from testbed.errors import InputError

#: Grades that are nearer to each other are taken for equal: percentages are rounded.
_APART = 0.01


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pod asks for of one card: MiB, or percent of its memory, and of its compute."""

    gpumem: int = 0
    percent: int = 0
    gpucores: int = 0


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of one card each, by its MiB; the quota; pods; ``submit POD`` and ``delete POD``.

    A quota of 0 is none.
    """

    nodes: dict[str, int]
    pods: dict[str, Ask]
    steps: list[str]
    quota_mib: int = 0
    quota_cores: int = 0


#: What is decided on a pod: a node's name, or one of these.
WAITS, REFUSES = "waits", "refused"


def expected(parameters: Parameters) -> list[dict[str, str]]:
    """Work out what each step decides: by pod a node's name, ``waits`` or ``refused``.

    Raises:
        InputError: a step cannot be played, or two outcomes would do.
    """
    held: dict[str, str] = {}
    waiting: list[str] = []
    known: set[str] = set()
    found = []

    def left() -> tuple[float, float]:
        """Return what the quota leaves, of each kind; a quota of 0 leaves everything."""
        taken = [_need(parameters, pod, node) for pod, node in held.items()]
        mem, cores = (
            bound - sum(used) if bound else math.inf
            for bound, used in zip(quota(parameters), _columns(taken), strict=True)
        )
        return mem, cores

    def able(pod: str) -> str:
        """Return the node that the pod fits, nothing where it fits none."""
        fits = [
            node
            for node in parameters.nodes
            if all(n <= f for n, f in zip(_need(parameters, pod, node), left(), strict=True))
            and _fits(parameters, pod, node, held)
        ]
        if len(fits) > 1:
            raise InputError(f"pod {pod} fits {' and '.join(fits)}: the case leaves it to chance")
        return "".join(fits)

    for kind, pod in parsed(parameters):
        decided: dict[str, str] = {}
        if (kind == "submit") == (pod in known):
            raise InputError(f"step {kind} {pod} cannot be played", why="each pod comes once")
        if kind == "submit":
            known.add(pod)
            ask, (mem, cores) = parameters.pods[pod], left()
            # A percentage of memory is known when there is a card, and not before.
            early = ask.gpumem > mem or ask.gpucores > cores
            decided[pod] = able(pod) or (REFUSES if early else WAITS)
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
                held[name] = decided[name]
        found.append(decided)
    return found


def unlimited(parameters: Parameters) -> list[dict[str, str]]:
    """Work out where pods lie without a quota: on the fullest card that has room (binpack).

    From the first pod on that waits, or that could as well lie elsewhere, nothing is said.
    """
    held: dict[str, str] = {}
    found: list[dict[str, str]] = []
    sure = True
    for kind, pod in parsed(parameters):
        found.append({})
        if kind == "delete":
            held.pop(pod, None)
            continue
        grades: dict[str, float] = {}
        for node, size in parameters.nodes.items():
            if _fits(parameters, pod, node, held):
                mem, cores = _columns(
                    [_need(parameters, each, node) for each in (*_there(held, node), pod)]
                )
                grades[node] = len(mem) / 10 + sum(mem) / size + sum(cores) / 100
        best = sorted(grades.values(), reverse=True)
        sure = sure and bool(best) and (len(best) == 1 or best[0] - best[1] > _APART)
        if sure:
            held[pod] = found[-1][pod] = max(grades, key=grades.__getitem__)
    return found


def share(ask: Ask, card_mib: int) -> int:
    return ask.gpumem or card_mib * ask.percent // 100


def _need(parameters: Parameters, pod: str, node: str) -> tuple[int, int]:
    """Return the MiB and the percent that a pod takes on a node."""
    ask = parameters.pods[pod]
    return share(ask, parameters.nodes[node]), ask.gpucores


def _there(held: Mapping[str, str], node: str) -> list[str]:
    return [pod for pod, where in held.items() if where == node]


def _columns(taken: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [mib for mib, _ in taken], [pct for _, pct in taken]


def _fits(parameters: Parameters, pod: str, node: str, held: Mapping[str, str]) -> bool:
    """Tell whether a pod's share fits a node's card beside those that are there."""
    there = _there(held, node)
    mem, cores = _columns([_need(parameters, each, node) for each in (*there, pod)])
    # Who asks for no compute needs a card that has some left.
    some = parameters.pods[pod].gpucores > 0 or sum(cores) < 100
    return sum(mem) <= parameters.nodes[node] and sum(cores) <= 100 and some


def quota(parameters: Parameters) -> tuple[int, int]:
    return parameters.quota_mib, parameters.quota_cores


def parsed(parameters: Parameters) -> list[tuple[str, str]]:
    found = []
    for step in parameters.steps:
        kind, _, pod = step.partition(" ")
        if kind not in ("submit", "delete") or pod not in parameters.pods:
            raise InputError(
                f"step {step!r} is not known", hint="write submit or delete, and a pod"
            )
        found.append((kind, pod))
    return found
