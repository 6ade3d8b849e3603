"""The answer as a terminal shows it; pure."""

from __future__ import annotations

from testbed.lab.explain.model import Ask, Explanation, Lack, NodeRoom, Raw
from testbed.lab.report.facts import duration
from testbed.lab.report.table import columns
from testbed.units import MIB

#: Nodes and cards of a node that are shown; JSON has them all.
_NODES, _CARDS = 3, 4
#: What a container waits for, by the monitor's words.
_WAITS = {"budget": "its share", "queue": "its work in flight", "priority": "a higher priority"}


def text(found: Explanation) -> str:
    """Return the explanation: the answer first, then what it rests on."""
    lines = [f"{found.namespace}/{found.pod} {found.says}"]
    blocks = [
        [f"asks for   {_ask(ask)}" for ask in found.asked],
        _cards(found),
        _containers(found),
        [f"{count} x {reason}" for reason, count in found.counts.items()] + _refused(found),
        [f"would fit if {each.what}: on {each.node}" for each in found.remedies],
        [f"scheduler: {found.scheduler}"] if found.scheduler else [],
        [f"event: {event}" for event in found.events],
        [f"note: {note}" for note in found.notes],
    ]
    if found.nodes and found.counts and not found.remedies:
        blocks[4] = ["no single change of those that were tried makes it fit"]
    for block in filter(None, blocks):
        lines += ["", *block]
    return "\n".join(lines)


def _refused(found: Explanation) -> list[str]:
    """Return the extender's memory, which outlasts the pod's events."""
    if found.refused is None:
        return []
    one = found.refused
    often = "once" if one.attempts == 1 else f"{one.attempts:,} times in {duration(one.waits_s)}"
    return [f"refused {often}, the last {duration(one.last_s)} ago"]


def _ask(ask: Ask) -> str:
    cards = "1 card" if ask.cards == 1 else f"{ask.cards} cards"
    if ask.mem_mib is not None:
        memory = f"{ask.mem_mib:,} MiB"
    else:
        memory = "all memory" if ask.mem_pct == 100 else f"{ask.mem_pct} % of the memory"
    cores = f", {ask.core_pct} % of compute" if ask.core_pct else ""
    each = " of each" if ask.cards > 1 else ""
    return f"{cards}: {memory}{cores}{each}   ({ask.container})"


def _cards(found: Explanation) -> list[str]:
    rows = []
    for node in found.nodes[:_NODES]:
        rows += _rows(node)
    if not rows:
        return []
    header = ("NODE", "CARD", "MODEL", "MEMORY FREE", "COMPUTE FREE", "SLOTS FREE", "LACKS")
    lines = columns(header, rows).splitlines()
    if len(found.nodes) > _NODES:
        lines.append(f"and {len(found.nodes) - _NODES} more nodes, further away")
    return lines


def _rows(node: NodeRoom) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            node.node,
            str(room.index),
            room.model.removeprefix("NVIDIA-").removeprefix("NVIDIA "),
            f"{room.mem_free_mib:,} of {room.mem_mib:,} MiB",
            f"{room.core_free_pct} of {room.core_pct} %",
            f"{room.slots_free} of {room.slots}",
            node.excluded or _lack(room.lack),
        )
        for room in node.cards[:_CARDS]
    ]
    left = len(node.cards) - _CARDS
    if left > 0:
        rows.append((node.node, f"+{left}", "", "", "", "", "further away"))
    return rows


def _lack(lack: Lack) -> str:
    parts = list(lack.blocked)
    if lack.mem_mib:
        parts.append(f"{lack.mem_mib:,} MiB" + (" (too small a card)" if lack.too_small else ""))
    if lack.whole:
        parts.append("is shared")
    elif lack.core_pct:
        parts.append(f"{lack.core_pct} %")
    if lack.slots:
        parts.append("a slot")
    return ", ".join(parts) or "-"


def _containers(found: Explanation) -> list[str]:
    rows: list[tuple[str, ...]] = [
        _container_row(container, device)
        for container in found.containers
        for device in container.get("devices", ())
    ]
    if not rows:
        return []
    header = ("CONTAINER", "CARD", "MEMORY", "OF", "COMPUTE", "OF", "WAITS", "FOR", "FLAGS")
    return columns(header, rows).splitlines()


def _container_row(container: Raw, device: Raw) -> tuple[str, ...]:
    asked, got = device.get("asked") or {}, device.get("got") or {}
    share = got.get("share_pct")
    cores = asked.get("core_pct") or 0
    waited = device.get("waited")
    reasons = {k: v for k, v in (device.get("waited_for") or {}).items() if v}
    flags = list(container.get("flags", ()))
    if container.get("unenforced"):
        flags.append(str(container["unenforced"]))
    return (
        str(container.get("container", "")),
        str(device.get("uuid", ""))[:12],
        _mib(got.get("bytes")),
        _mib(asked.get("bytes")),
        "-" if share is None else f"{share:.1f} %",
        _share(cores, container.get("policy")),
        "-" if waited is None else f"{100 * waited:.0f} % of its time",
        ", ".join(_WAITS.get(k, k) for k in sorted(reasons, key=lambda k: -reasons[k])) or "-",
        ", ".join(dict.fromkeys(flags)) or "-",
    )


def _share(cores: int, policy: str | None) -> str:
    if not cores:
        return "no limit"
    return f"{cores} %" + (f" ({policy})" if policy and policy != "default" else "")


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count // MIB:,} MiB"
