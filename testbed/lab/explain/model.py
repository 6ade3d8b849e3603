"""What ``testbed explain`` knows and what it says; plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from testbed.stack.config import DeviceConfig

Raw = Mapping[str, Any]

State = Literal["waiting", "reserved", "starting", "running", "ended", "foreign", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the cluster tells, read once.

    Attributes:
        pod: The pod, raw.
        config: The stack's configuration.
        books: The extender's ``/debug/ledger``; None where it does not answer.
        reservations: Its ``/debug/reservations``, likewise.
        waiting: Its ``/debug/waiting``, likewise.
        nodes: All nodes, raw.
        pods: All pods, raw: whose shares lie on the cards.
        events: Of the pod, raw.
        containers: Entries of the monitors' ``/v1/containers``; None where no monitor
            answers it.
        problems: What could not be read.
    """

    pod: Raw
    config: DeviceConfig
    books: Raw | None = None
    reservations: Raw | None = None
    waiting: Raw | None = None
    nodes: Sequence[Raw] = ()
    pods: Sequence[Raw] = ()
    events: Sequence[Raw] = ()
    containers: Sequence[Raw] | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container asks for.

    Attributes:
        mem_mib: MiB of each card; None where a percentage is asked for.
        mem_pct: Percent of each card's memory.
    """

    container: str
    cards: int
    mem_mib: int | None = None
    mem_pct: int | None = None
    core_pct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What a card lacks for a container.

    Attributes:
        mem_mib: MiB too few.
        core_pct: Percent too few.
        too_small: More memory is asked than the whole card has.
        slots: 1 where no container more may share the card.
        whole: The container wants a card for itself, and this one is shared.
        blocked: What no pod's end helps against: cordoned, not healthy, another model, …
    """

    mem_mib: int = 0
    too_small: bool = False
    core_pct: int = 0
    slots: int = 0
    whole: bool = False
    blocked: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        return self == Lack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A card: what is free, and what the pod lacks there."""

    uuid: str
    index: int
    model: str
    mem_mib: int
    mem_free_mib: int
    core_pct: int
    core_free_pct: int
    slots: int
    slots_free: int
    lack: Lack = field(default_factory=Lack)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node: its cards, nearest first, and why the pod does not go there.

    Attributes:
        reason: The extender's words; empty where the cards would do.
        excluded: Why the scheduler does not even offer the node.
    """

    node: str
    cards: tuple[Room, ...]
    reason: str = ""
    excluded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change after which the pod would fit; each was tried on the extender's books."""

    what: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What the extender remembers of a pod that waits; it outlasts the pod's events.

    Attributes:
        attempts: How often it was refused.
        waits_s: Seconds since the first time.
        last_s: Seconds since the last time.
    """

    attempts: int
    waits_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer.

    Attributes:
        says: One line, the whole answer.
        asked: What each container asks for.
        node: Where it is, or has a reservation.
        nodes: Every node, nearest first; for a waiting pod.
        counts: Reason -> how many nodes, the most frequent first.
        refused: How often and since when the extender refused a waiting pod.
        remedies: What would make it fit.
        containers: What the monitor tells of a running pod's containers.
        scheduler: The scheduler's own last words.
        events: The pod's last warnings.
        notes: What else there is to know, and what could not be read.
    """

    namespace: str
    pod: str
    state: State
    says: str
    asked: tuple[Ask, ...] = ()
    node: str = ""
    nodes: tuple[NodeRoom, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    refused: Refused | None = None
    remedies: tuple[Remedy, ...] = ()
    containers: tuple[Raw, ...] = ()
    scheduler: str = ""
    events: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
