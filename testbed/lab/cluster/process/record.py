"""What is known of a cluster that was started: ``cluster.json`` in its state folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from testbed.card.spec import CardSpec
from testbed.lab.images.model import Bind, Image

Stage = Literal["starting", "up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The start of a cluster, for the commands that come after."""

    name: str
    #: Marks this one start's processes; see ``processes.py``.
    token: str
    stage: Stage
    port: int
    #: What was asked for, to tell whether a second ``up`` asks for the same.
    nodes: int
    #: Cards of each node: [[profile, count]...]...
    cards: list[list[list[Any]]]
    id_range: bool
    binaries: str  # inside
    runc: str
    #: Build of the emulated driver that its nodes carry.
    driver: str = ""
    pid: int = 0
    started: str = ""
    pid1: int = 0
    pid1_started: str = ""
    uuids: dict[str, list[str]] = field(default_factory=dict)  # by node
    #: Reference, archive and what is lent: (reference, archive, [[source, destination]...])
    images: list[list[Any]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1))
        new.replace(path)

    def specs(self) -> tuple[tuple[CardSpec, ...], ...]:
        """Return the cards of each node, as they were asked for."""
        return tuple(
            tuple(CardSpec(profile=str(profile), count=int(count)) for profile, count in cards)
            for cards in self.cards
        )

    def known_images(self) -> list[Image]:
        """Return the images that the nodes have."""
        return image_values(self.images)

    @classmethod
    def read(cls, path: Path) -> Record | None:
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


def image_list(images: Iterable[Image]) -> list[list[Any]]:
    """Return images as the record keeps them."""
    return [
        [
            each.reference,
            str(each.archive),
            [[str(bind.source), bind.destination] for bind in each.binds],
        ]
        for each in images
    ]


def image_values(images: Iterable[list[Any]]) -> list[Image]:
    """Return images that a record keeps; the reverse of ``image_list``."""
    return [
        Image(
            reference=reference,
            archive=Path(archive),
            binds=tuple(Bind(source=Path(a), destination=b) for a, b in binds),
        )
        for reference, archive, binds in images
    ]
