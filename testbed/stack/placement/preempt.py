"""Whose shares must end so that a pod of higher priority fits: the lowest and fewest.

Victims are chosen as Kubernetes chooses them: nobody of a higher priority goes where
those of a lower one would do; of the sets that are left the smallest, of those the one
with the lowest priorities, of those the one that has run for the shortest time. Only
pods whose end frees the *right* card count: each set is tried on the ledger itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from testbed.stack.model import PodShares
from testbed.stack.placement.fit import place, shares_of
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.placement.request import PodRequest

#: Sets of victims that are tried on a node; then the pods are spared one by one instead,
#: the highest priorities first, which is a smallest set but perhaps not the smallest.
MOST_TRIES = 300
#: Nodes that are looked at for one pod.
MOST_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A pod that may have to go.

    Attributes:
        started: When it was bound, any clock; larger is younger.
    """

    uid: str
    priority: int
    started: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where a pod goes once its victims are gone; ``cost`` orders plans."""

    node: str
    victims: tuple[Victim, ...]
    shares: PodShares

    @property
    def cost(self) -> tuple[int, int, int, float]:
        return _cost(self.victims)


def _cost(victims: Sequence[Victim]) -> tuple[int, int, int, float]:
    return (
        max((v.priority for v in victims), default=-(2**31)),
        len(victims),
        sum(v.priority for v in victims),
        -sum(v.started for v in victims),
    )


def plan(
    ledger: Ledger,
    pod: PodRequest,
    nodes: Iterable[str],
    candidates: Callable[[str], Sequence[Victim]],
    room: Amount = UNBOUNDED,
) -> Plan | None:
    """Return the cheapest plan over some nodes; None if no end of others helps.

    Args:
        ledger: The cards; unchanged when this returns.
        pod: What is asked for.
        nodes: Where the pod may go.
        candidates: The pods of a node that may have to go.
        room: What the quota of the pod's namespace leaves it.
    """
    best: Plan | None = None
    looked = 0
    for node in nodes:
        victims = candidates(node)
        if not victims:
            continue
        looked += 1
        if looked > MOST_NODES:
            break
        found = on_node(ledger, pod, node, victims, room)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


def on_node(
    ledger: Ledger,
    pod: PodRequest,
    node: str,
    candidates: Sequence[Victim],
    room: Amount = UNBOUNDED,
    gone: Sequence[str] = (),
) -> Plan | None:
    """Return the cheapest plan for one node.

    Args:
        gone: Pods that end in any case, without being counted.
    """
    row = ledger.row_of(node)
    if row is None:
        return None
    rows = np.array([row], np.int64)

    def fits(victims: Sequence[Victim]) -> PodShares | None:
        with _without(ledger, [*gone, *(v.uid for v in victims)]):
            placement = place(ledger, pod, rows, room)
            return shares_of(ledger, pod, placement, 0, row) if placement.good[0] else None

    pool: list[Victim] = []
    if fits(pool) is None:
        for priority in sorted({v.priority for v in candidates}):
            pool = [v for v in candidates if v.priority <= priority]
            if fits(pool) is not None:
                break
        else:
            return None
    victims = _fewest(pool, fits)
    shares = fits(victims)
    if shares is None:
        raise AssertionError("the victims of a plan do not free its cards")
    return Plan(node=node, victims=tuple(victims), shares=shares)


def _fewest(
    pool: Sequence[Victim], fits: Callable[[Sequence[Victim]], PodShares | None]
) -> Sequence[Victim]:
    ordered = sorted(pool, key=lambda v: (v.priority, -v.started))
    tries = 0
    for size in range(len(ordered) + 1):
        good = []
        for victims in combinations(ordered, size):
            tries += 1
            if tries > MOST_TRIES:
                return _spared(ordered, fits)
            if fits(victims) is not None:
                good.append(victims)
        if good:
            return min(good, key=_cost)
    raise AssertionError("all of them together were enough a moment ago")


def _spared(
    ordered: list[Victim], fits: Callable[[Sequence[Victim]], PodShares | None]
) -> Sequence[Victim]:
    victims = list(ordered)
    for victim in reversed(ordered):
        rest = [v for v in victims if v is not victim]
        if fits(rest) is not None:
            victims = rest
    return victims


@contextmanager
def _without(ledger: Ledger, uids: Sequence[str]) -> Iterator[None]:
    held = []
    try:
        for uid in uids:
            promise = ledger.held(uid)
            if promise is not None:
                held.append((uid, promise))
                ledger.release(uid)
        yield
    finally:
        for uid, promise in held:
            ledger.hold(uid, promise)
