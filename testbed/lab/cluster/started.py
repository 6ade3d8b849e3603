"""What is known of a cluster that was started, whatever its kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from testbed.card.spec import CardSpec
from testbed.lab.images.model import Bind, Image

Stage = Literal["starting", "up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The start of a cluster, for the commands that come after; each kind adds its own."""

    name: str
    #: Marks this one start's processes.
    token: str
    stage: Stage
    port: int
    nodes: int
    #: Build of the emulated driver that its nodes carry.
    driver: str = ""
    #: The port that was asked for; 0 where any would do.
    asked_port: int = 0
    #: Whether pods may run as other users than 0.
    id_range: bool = True
    uuids: dict[str, list[str]] = field(default_factory=dict)  # by node
    #: Images that the nodes have, as ``image_list`` writes them.
    images: list[list[Any]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1))
        new.replace(path)

    def specs(self) -> tuple[tuple[CardSpec, ...], ...]:
        """Return the cards of each node, as they were asked for."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the record of a file, or None where it is missing or half-written."""
        raise NotImplementedError

    def known_images(self) -> list[Image]:
        """Return the images that the nodes have."""
        return [
            Image(
                reference=reference,
                archive=Path(archive),
                binds=tuple(Bind(source=Path(a), destination=b) for a, b in binds),
            )
            for reference, archive, binds in self.images
        ]


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
