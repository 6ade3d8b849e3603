"""Placement a second time, as its rules are told to people: objects and plain loops.

Tests and ``testbed bench extender`` hold the extender's decisions against it. It shares
no code with ``stack.placement`` but the frozen values, and is slow on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind, PodRequest

_PPM = 1_000_000

#: (uuid, MiB, percent) of one card of one container.
Taken = tuple[str, int, int]


@dataclass(slots=True)
class Slot:
    """A card with what is used of it."""

    card: Card
    cordoned: bool = False
    slots: int = 0
    mem: int = 0
    core: int = 0

    def copy(self) -> Slot:
        return Slot(self.card, self.cordoned, self.slots, self.mem, self.core)

    def need(self, request: Request) -> int:
        if request.mem_mib is not None:
            return request.mem_mib
        return self.card.mem_mib * (request.mem_pct or 0) // 100

    def take(self, slots: int, mem: int, core: int) -> None:
        self.slots += slots
        self.mem += mem
        self.core += core

    def refusal(self, request: Request, want: Constraint, mutex: bool) -> str:
        """Return the first reason why the card does not take a container, or ""."""
        card, model = self.card, self.card.model.lower()
        wanted = not want.use_types or any(w.lower() in model for w in want.use_types)
        checks: Sequence[tuple[str, Callable[[], bool]]] = (
            ("CardNotHealth", lambda: not card.healthy),
            ("CardCordoned", lambda: self.cordoned),
            (
                "CardTypeMismatch",
                lambda: not wanted or any(w.lower() in model for w in want.nouse_types),
            ),
            ("ModeNotFit", lambda: card.mode != "hami-core"),
            (
                "CardUuidMismatch",
                lambda: (
                    (bool(want.use_uuids) and card.uuid not in want.use_uuids)
                    or card.uuid in want.nouse_uuids
                ),
            ),
            ("CardTimeSlicingExhausted", lambda: self.slots >= card.slots),
            ("ExclusiveDeviceAllocateConflict", lambda: mutex and self.slots > 0),
            ("CardInsufficientMemory", lambda: self.mem + self.need(request) > card.mem_mib),
            ("CardInsufficientCore", lambda: self.core + request.core_pct > card.core_pct),
            (
                "ExclusiveDeviceAllocateConflict",
                lambda: request.core_pct >= 100 and self.slots > 0,
            ),
            (
                "CardComputeUnitsExhausted",
                lambda: request.core_pct == 0 and self.core >= card.core_pct,
            ),
        )
        return next((word for word, fails in checks if fails()), "")


@dataclass(slots=True)
class Reference:
    """A cluster of cards, and what pods hold of them.

    Attributes:
        nodes: The cards of each node, by index.
        links: What links are worth, by node, uuid and uuid.
        held: Node and charges by uid and card's uuid.
        mem_room, core_room: What a quota leaves the next pod; None is no quota.
    """

    nodes: dict[str, list[Slot]] = field(default_factory=dict)
    links: dict[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    held: dict[str, tuple[str, dict[str, tuple[int, int, int]]]] = field(default_factory=dict)
    mem_room: int | None = None
    core_room: int | None = None

    def place(self, node: str, pod: PodRequest) -> list[list[Taken]] | None:
        """Return what each container gets on a node; None if it does not fit."""
        slots = [slot.copy() for slot in self.nodes[node]]
        words = pod.card_policy.split(",")
        placed: list[list[Taken]] = []
        for request, kind in zip(pod.containers, pod.kinds, strict=True):
            if not request.count:
                placed.append([])
                continue
            here = [slot.copy() for slot in slots] if kind is Kind.INIT else slots
            fitting = [s for s in here if not s.refusal(request, pod.constraint, "mutex" in words)]
            chosen = self._chosen(node, fitting, request, pod, words)
            if chosen is None:
                return None
            placed.append([(s.card.uuid, s.need(request), request.core_pct) for s in chosen])
            for slot in chosen:
                slot.take(1, slot.need(request), request.core_pct)
        charges = charges_of(pod.kinds, placed).values()
        for room, part in ((self.mem_room, 1), (self.core_room, 2)):
            asked = sum(charge[part] for charge in charges)
            if room is not None and asked and asked > room:
                return None
        return placed

    def _chosen(
        self, node: str, fitting: list[Slot], request: Request, pod: PodRequest, words: list[str]
    ) -> list[Slot] | None:
        count = request.count
        groups: dict[int, list[Slot]] = {}
        for slot in fitting:
            groups.setdefault(slot.card.numa, []).append(slot)
        holding = {numa: group for numa, group in groups.items() if len(group) >= count}
        order = [word for word in words if word != "mutex"]

        def cost(slot: Slot) -> tuple[int, ...]:
            full = self._full(slot, request, pod)
            tie: tuple[int, ...] = ()
            if "numa" in order and order.index("numa") > 0:
                tie = (slot.card.numa not in holding, slot.card.numa)
            return (-full if "binpack" in words else full, *tie)

        def best(slots: list[Slot]) -> tuple[int, list[Slot]]:
            if "topology-aware" in words:
                return self._linked(node, slots, count, cost)
            ranked = sorted(slots, key=lambda slot: (cost(slot), slot.card.index))
            return 0, sorted(ranked[:count], key=lambda slot: slot.card.index)

        bound = pod.constraint.numa_bind
        if holding and (bound or (order and order[0] == "numa")):
            found = []
            for numa in sorted(holding):
                worth, slots = best(holding[numa])
                found.append((-worth, _sum(map(cost, slots)), numa, slots))
            return min(found, key=lambda entry: entry[:3])[3]
        if bound or len(fitting) < count:
            return None
        return best(fitting)[1]

    def _linked(
        self,
        node: str,
        slots: list[Slot],
        count: int,
        cost: Callable[[Slot], tuple[int, ...]],
    ) -> tuple[int, list[Slot]]:
        said = self.links.get(node, {})

        def link(a: Slot, b: Slot) -> int:
            one, other = a.card.uuid, b.card.uuid
            return max(said.get(one, {}).get(other, 0), said.get(other, {}).get(one, 0))

        ordered = sorted(slots, key=lambda slot: slot.card.index)
        if count == 1:
            worth = [sum(link(s, o) for o in ordered if o is not s) for s in ordered]
            at = min(range(len(ordered)), key=lambda i: (worth[i], cost(ordered[i]), i))
            return -worth[at], [ordered[at]]
        found = []
        for number, chosen in enumerate(combinations(ordered, count)):
            total = sum(link(a, b) for a, b in combinations(chosen, 2))
            found.append((-total, _sum(map(cost, chosen)), number, list(chosen)))
        least = min(found, key=lambda entry: entry[:3])
        return -least[0], least[3]

    @staticmethod
    def _full(slot: Slot, request: Request, pod: PodRequest) -> int:
        card, weigh = slot.card, pod.weights
        return (
            weigh.slot * ((slot.slots + 1) * _PPM // max(1, card.slots))
            + weigh.core * ((slot.core + request.core_pct) * _PPM // max(1, card.core_pct))
            + weigh.memory * ((slot.mem + slot.need(request)) * _PPM // max(1, card.mem_mib))
        )

    def score(self, node: str, pod: PodRequest) -> float:
        """Return 10 x (slots + memory + cores), each used by total with the pod's share."""
        slots = self.nodes[node]
        lasting = [
            r
            for r, k in zip(pod.containers, pod.kinds, strict=True)
            if r.count and k is not Kind.INIT
        ] or [max(pod.containers, key=lambda r: r.count)]
        mem = sum(s.card.mem_mib for s in slots)
        wanted = 0.0
        for request in lasting:
            one: float = request.mem_mib or 0
            if request.mem_mib is None:
                one = mem / len(slots) * (request.mem_pct or 0) / 100
            wanted += request.count * one
        used = sum(s.slots for s in slots) + sum(r.count for r in lasting)
        core = sum(s.core for s in slots) + sum(r.count * r.core_pct for r in lasting)
        return 10 * (
            used / max(1, sum(s.card.slots for s in slots))
            + (sum(s.mem for s in slots) + wanted) / max(1, mem)
            + core / max(1, sum(s.card.core_pct for s in slots))
        )

    def decide(self, pod: PodRequest, offered: Iterable[str]) -> dict[str, list[list[Taken]]]:
        """Return the placement on every offered node that the pod fits on."""
        placed = {n: self.place(n, pod) for n in offered if n in self.nodes}
        return {name: found for name, found in placed.items() if found is not None}

    def best(self, pod: PodRequest, fitting: Iterable[str]) -> set[str]:
        """Return the nodes that a pod's policy likes best; several only if they are equal."""
        sign = 1 if pod.node_policy == "binpack" else -1
        scores = {name: sign * self.score(name, pod) for name in fitting}
        most = max(scores.values())
        return {name for name, found in scores.items() if most - found < 1e-9}

    def promise(
        self, uid: str, node: str, kinds: Sequence[Kind], placed: list[list[Taken]]
    ) -> None:
        """Charge a pod with the most that it uses of each card at one time."""
        charges = charges_of(kinds, placed)
        self.held[uid] = (node, charges)
        for slot in self.nodes[node]:
            slot.take(*charges.get(slot.card.uuid, (0, 0, 0)))

    def release(self, uid: str) -> None:
        node, charges = self.held.pop(uid)
        for slot in self.nodes[node]:
            slots, mem, core = charges.get(slot.card.uuid, (0, 0, 0))
            slot.take(-slots, -mem, -core)


def charges_of(kinds: Sequence[Kind], placed: list[list[Taken]]) -> dict[str, tuple[int, int, int]]:
    """Return the most that is in use of each card, step by step through the pod's life."""
    charges = {}
    for uuid in {uuid for container in placed for uuid, _, _ in container}:
        most, running = [0, 0, 0], [0, 0, 0]
        for kind, container in zip(kinds, placed, strict=True):
            own = [taken for taken in container if taken[0] == uuid]
            step = [len(own), sum(t[1] for t in own), sum(t[2] for t in own)]
            now = [a + b for a, b in zip(running, step, strict=True)]
            if kind is not Kind.INIT:
                running = now
            most = [max(a, b) for a, b in zip(most, now, strict=True)]
        charges[uuid] = (most[0], most[1], most[2])
    return charges


def _sum(costs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*costs, strict=True)))
