"""What is known of a cluster that was started: ``cluster.json`` in its state folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from testbed.card.spec import CardSpec
from testbed.lab.cluster.started import Started


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Started):
    """The start of a cluster of processes; its token is in their command lines (``processes``)."""

    #: Cards of each node: [[profile, count]...]...
    cards: list[list[list[Any]]]
    binaries: str  # inside
    runc: str
    pid: int = 0
    started: str = ""
    pid1: int = 0
    pid1_started: str = ""

    def specs(self) -> tuple[tuple[CardSpec, ...], ...]:
        """Return the cards of each node, as they were asked for."""
        return tuple(
            tuple(CardSpec(profile=str(profile), count=int(count)) for profile, count in cards)
            for cards in self.cards
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record of a file, or None where it is missing or half-written."""
        try:
            found = cls(**json.loads(path.read_text()))
            if len(found.cards) == found.nodes and all(
                isinstance(cards, list) and all(isinstance(card, list) for card in cards)
                for cards in found.cards
            ):
                return found
            # As earlier versions wrote it: one list for all nodes.
            return replace(found, cards=[found.cards] * found.nodes)
        except (OSError, ValueError, TypeError):
            return None
