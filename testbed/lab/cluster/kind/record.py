"""What is known of a kind cluster that was started: ``kind.json`` in its state folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from testbed.card.spec import CardSpec, parse_nodes
from testbed.errors import InputError
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.layout import Mount
from testbed.lab.cluster.started import Started


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Started):
    """The start of a kind cluster; its token marks the engine, where that is our own."""

    engine: str
    own: bool
    #: Variables in which the engine is reached.
    environment: dict[str, str]
    #: Images and containers of an engine of our own; empty for somebody's.
    data: str
    #: Cards of each node, as ``--cards`` says them.
    cards: str
    image: str
    #: The nodes' low-level runtime.
    runc: str
    kind: str
    #: [source, target, read only] of what all nodes are lent.
    mounts: list[list[Any]]
    #: What is good to know of its cards, one line each.
    told: list[str] = field(default_factory=list)

    def specs(self) -> tuple[tuple[CardSpec, ...], ...]:
        """Return the cards of each node, as they were asked for."""
        return parse_nodes(self.cards, self.nodes)[1]

    def reached(self) -> Engine:
        """Return the engine."""
        return Engine(program=self.engine, own=self.own, environment=self.environment)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record of a file, or None where it is missing or half-written."""
        try:
            found = cls(**json.loads(path.read_text()))
            found.specs()
        except (OSError, ValueError, TypeError, InputError):
            return None
        return found


def mount_list(mounts: Sequence[Mount]) -> list[list[Any]]:
    """Return mounts as the record keeps them."""
    return [[each.source, each.target, each.read_only] for each in mounts]
