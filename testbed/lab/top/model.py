"""What ``testbed top`` shows, joined from what the parts tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from testbed.errors import DeployError

Raw = Mapping[str, Any]


class CardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A card of a monitor's ``/v1/cards``."""

    uuid: str
    name: str
    index: int
    memory_bytes: int
    used_bytes: int | None = None
    utilization_pct: float | None = None
    process_samples: bool = True
    clock: str | None = None
    error: str = ""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a device, or what its library holds a container to."""

    bytes: int
    core_pct: int


class Got(msgspec.Struct, frozen=True, kw_only=True):
    """What a container has of a device."""

    bytes: int
    processes: int
    share_pct: float | None
    swapped_bytes: int | None = None


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a container of ``/v1/containers``."""

    uuid: str
    asked: Amounts
    got: Got
    limit: Amounts | None = None
    waited: float | None = None
    waited_for: dict[str, float | None] = {}


class ContainerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A container of ``/v1/containers``."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    running: bool
    policy: str | None = None
    priority: int | None = None
    flags: tuple[str, ...] = ()
    unenforced: str | None = None
    devices: tuple[DeviceAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What one node's monitor told; ``problem`` says why it did not."""

    node: str
    cards: tuple[CardAnswer, ...] = ()
    containers: tuple[ContainerAnswer, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the table.

    Attributes:
        pods: Pods that were promised some of its cards.
        used_bytes: Of all its cards, as the driver counts.
        problem: Why its monitor told nothing.
    """

    name: str
    ready: bool
    cards: int
    healthy: int
    pods: int
    used_bytes: int
    memory_bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """A card of the table.

    Attributes:
        used_bytes: As the driver counts, None where the monitor told nothing.
        promised_mib: By the extender's ledger, of ``mem_mib`` that may be.
        flags: What is out of the ordinary.
    """

    node: str
    index: int
    uuid: str
    model: str
    utilization_pct: float | None
    used_bytes: int | None
    memory_bytes: int
    pods: int
    promised_mib: int
    mem_mib: int
    promised_pct: int
    core_pct: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRow:
    """A container on one of its cards.

    Attributes:
        card: The card's index on its node.
        bytes: What it holds there, as the card counts.
        swapped_bytes: What it holds outside (memory scaling), None where nobody knows.
        asked_pct: Share of the card, 0 for no limit.
        share_pct: What it got over the last seconds.
        waited: Launches held back at a time, 1 is one thread that does nothing else.
        waits_for: The reason that held most of them back.
    """

    namespace: str
    pod: str
    container: str
    node: str
    card: int
    uuid: str
    asked_bytes: int
    bytes: int
    asked_pct: int
    share_pct: float | None
    waited: float | None
    waits_for: str = ""
    policy: str = ""
    priority: int | None = None
    flags: tuple[str, ...] = ()
    swapped_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod that has no node yet."""

    namespace: str
    pod: str
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One look at a testbed."""

    nodes: tuple[Node, ...] = ()
    cards: tuple[CardRow, ...] = ()
    containers: tuple[ContainerRow, ...] = ()
    pending: tuple[Pending, ...] = ()
    problems: tuple[str, ...] = field(default=())


def node_answer(node: str, cards: bytes, containers: bytes) -> NodeAnswer:
    """Return what a monitor told.

    Raises:
        DeployError: it is not what docs/architecture.md says.
    """
    try:
        told = msgspec.json.decode(cards, type=_Cards)
        held = msgspec.json.decode(containers, type=_Containers)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DeployError(f"the monitor of {node} cannot be read", why=str(error)) from error
    return NodeAnswer(node=node, cards=told.cards, containers=held.containers)


def view(
    answers: Iterable[NodeAnswer],
    *,
    nodes: Mapping[str, bool],
    ledger: Raw | None,
    pending: Iterable[Pending] = (),
    problems: Sequence[str] = (),
    namespace: str = "",
) -> View:
    """Return one look, in the order of names and indices.

    Args:
        answers: Of the monitors.
        nodes: The cluster's nodes, and whether they are ready.
        ledger: The extender's ``/debug/ledger``, None where it told nothing.
        pending: Pods that have no node yet.
        problems: Why something is missing.
        namespace: Shows containers and pending pods of this one only.
    """
    told = {answer.node: answer for answer in answers}
    books: Mapping[str, Any] = (ledger or {}).get("nodes", {})
    shown = sorted(told.keys() | books.keys())
    cards = {name: _cards(name, told.get(name), books.get(name)) for name in shown}
    rows = [row for name in shown for row in _containers(told.get(name), cards[name])]
    return View(
        nodes=tuple(
            _node(name, nodes.get(name, False), told.get(name), cards[name], rows) for name in shown
        ),
        cards=tuple(card for name in shown for card in cards[name]),
        containers=tuple(row for row in rows if namespace in ("", row.namespace)),
        pending=tuple(
            sorted(
                (each for each in pending if namespace in ("", each.namespace)),
                key=lambda each: (each.namespace, each.pod),
            )
        ),
        problems=tuple(problems)
        + tuple(f"{name}: {told[name].problem}" for name in sorted(told) if told[name].problem),
    )


class _Cards(msgspec.Struct, frozen=True, kw_only=True):
    cards: tuple[CardAnswer, ...]


class _Containers(msgspec.Struct, frozen=True, kw_only=True):
    containers: tuple[ContainerAnswer, ...]


def _node(
    name: str,
    ready: bool,
    answer: NodeAnswer | None,
    cards: Sequence[CardRow],
    rows: Iterable[ContainerRow],
) -> Node:
    return Node(
        name=name,
        ready=ready,
        cards=len(cards),
        healthy=sum("unhealthy" not in card.flags for card in cards),
        pods=len({(row.namespace, row.pod) for row in rows if row.node == name}),
        used_bytes=sum(card.used_bytes or 0 for card in cards),
        memory_bytes=sum(card.memory_bytes for card in cards),
        problem="" if answer is None else answer.problem,
    )


def _cards(node: str, answer: NodeAnswer | None, book: Raw | None) -> tuple[CardRow, ...]:
    told = {card.uuid: card for card in (answer.cards if answer else ())}
    booked = {card["uuid"]: card for card in (book or {}).get("cards", ())}
    on = {
        uuid: {
            (entry.namespace, entry.pod)
            for entry in (answer.containers if answer else ())
            for device in entry.devices
            if device.uuid == uuid
        }
        for uuid in told.keys() | booked.keys()
    }
    rows = [
        _card(node, uuid, told.get(uuid), booked.get(uuid), len(pods)) for uuid, pods in on.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.index, row.uuid)))


def _card(node: str, uuid: str, told: CardAnswer | None, booked: Raw | None, pods: int) -> CardRow:
    flags = []
    if booked is not None and not booked["healthy"]:
        flags.append("unhealthy")
    if booked is not None and booked["cordoned"]:
        flags.append("cordoned")
    if booked is None:
        flags.append("not registered")
    if told is not None and told.error:
        flags.append("unreadable")
    elif told is not None and not told.process_samples:
        flags.append("no-process-samples")
    if told is not None and told.clock == "sharing":
        flags.append("clock=sharing")
    memory = {"used": 0, "total": 0} if booked is None else booked["mem_mib"]
    cores = {"used": 0, "total": 0} if booked is None else booked["core_pct"]
    return CardRow(
        node=node,
        index=told.index if told else int((booked or {}).get("index", 0)),
        uuid=uuid,
        model=(told.name if told else str((booked or {}).get("model", ""))).removeprefix("NVIDIA "),
        utilization_pct=told.utilization_pct if told else None,
        used_bytes=told.used_bytes if told else None,
        memory_bytes=told.memory_bytes if told else memory["total"] << 20,
        pods=pods,
        promised_mib=memory["used"],
        mem_mib=memory["total"],
        promised_pct=cores["used"],
        core_pct=cores["total"],
        flags=tuple(flags),
    )


def _containers(answer: NodeAnswer | None, cards: Sequence[CardRow]) -> list[ContainerRow]:
    index = {card.uuid: card.index for card in cards}
    rows = []
    for entry in answer.containers if answer else ():
        flags = [flag for flag in entry.flags if flag != "unenforced"]
        if entry.unenforced:
            flags.append(f"unenforced: {entry.unenforced}")
        if not entry.running:
            flags.append("not running")
        for device in entry.devices:
            # A limit that was changed while it runs is what it is held to.
            held = device.limit or device.asked
            reasons = {k: v for k, v in device.waited_for.items() if v}
            rows.append(
                ContainerRow(
                    namespace=entry.namespace,
                    pod=entry.pod,
                    container=entry.container,
                    node=answer.node if answer else "",
                    card=index.get(device.uuid, -1),
                    uuid=device.uuid,
                    asked_bytes=held.bytes,
                    bytes=device.got.bytes,
                    swapped_bytes=device.got.swapped_bytes,
                    asked_pct=held.core_pct if 0 < held.core_pct < 100 else 0,
                    share_pct=device.got.share_pct,
                    waited=device.waited,
                    waits_for=max(reasons, key=lambda k: reasons[k] or 0) if reasons else "",
                    policy=entry.policy or "",
                    priority=entry.priority,
                    flags=tuple(flags),
                )
            )
    return sorted(rows, key=lambda row: (row.namespace, row.pod, row.container, row.card))
