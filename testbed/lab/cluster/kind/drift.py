"""In what a cluster that is there differs from the one that is asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.errors import InputError
from testbed.lab.cluster.kind.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What ``up`` asks for, in the record's terms."""

    nodes: int
    cards: str
    #: 0: whatever it has.
    port: int
    image: str
    mounts: list[list[Any]]
    engine: str = ""


def differences(record: Record, wanted: Wanted) -> list[str]:
    """Return what differs, one clause each: what there is, and what is asked for."""
    found = []
    if record.nodes != wanted.nodes:
        found.append(f"it has {record.nodes} nodes, not {wanted.nodes}")
    if record.cards != wanted.cards:
        found.append(f"its cards are '{record.cards}', not '{wanted.cards}'")
    if wanted.port not in (0, record.port):
        found.append(f"its port is {record.port}, not {wanted.port}")
    if wanted.image and record.image != wanted.image:
        found.append(f"its nodes are of image {record.image}, not {wanted.image}")
    if wanted.engine and record.engine != wanted.engine:
        found.append(f"it runs in {record.engine}, not {wanted.engine}")
    lacking = [each for each in wanted.mounts if each not in record.mounts]
    if lacking:
        paths = ", ".join(str(each[0]) for each in lacking)
        found.append(f"its nodes do not see {paths}")
    return found


def check(record: Record, wanted: Wanted) -> None:
    """Refuse a cluster that is another than what is asked for.

    Raises:
        InputError: telling all that differs.
    """
    found = differences(record, wanted)
    if found:
        raise InputError(
            f"the kind cluster {record.name!r} is up and is another than this command asks for",
            why="; ".join(found),
            hint=f"testbed down --name {record.name}, then up again, or use another --name",
        )
