"""What a kind cluster is made of and others make: tools, node image, images, cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.lab import binaries, images
from testbed.lab.binaries import kind as kind_tools
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.process.parts import Parts as ProcessParts
from testbed.lab.cluster.protocol import CardSpec, Progress
from testbed.lab.images import node
from testbed.lab.images.model import Image
from testbed.lab.images.node import NodeImage as NodeImage


class Parts:
    """The product's own parts; tests bring smaller ones."""

    def __init__(self) -> None:
        self._process = ProcessParts()

    def tools(self, progress: Progress) -> kind_tools.KindTools:
        """Return kind and kubectl, made first where needed."""
        return kind_tools.ensure(progress)

    def kind(self) -> Path | None:
        """Return kind where it has been made already."""
        return kind_tools.find()

    def node(self, engine: Engine | None, progress: Progress) -> NodeImage:
        """Return the nodes' image: kind's own where this engine has or can pull it.

        Args:
            engine: The engine that is there; None for an own one, which has no network.
            progress: Told each step.
        """
        if engine is None:
            return node.prepare(progress)
        with progress.step("look for the node image") as step:
            chosen = node.choose([engine.program], engine.environ())
            step.update(chosen.why)
        return node.pulled() if chosen.official else node.prepare(progress)

    def images(self, progress: Progress) -> tuple[Image, ...]:
        """Return the images that nodes import."""
        return images.prepare(progress)

    def front(self, progress: Progress) -> Path:
        """Return the OCI front, in the cache."""
        return images.native_folder(progress) / images.FRONT

    def runc(self, progress: Progress) -> Path:
        """Return the runtime behind the front of an engine of our own."""
        return binaries.ensure(progress).runc

    def driver(self) -> str:
        """Return which build of the emulated driver nodes get; empty where it is not built."""
        return self._process.driver()

    def check_cards(self, specs: Sequence[CardSpec]) -> None:
        """Check a wish for emulated cards before anything is made for it.

        Raises:
            InputError: a card that there is not.
        """
        self._process.check_cards(specs)

    def cards(self, folder: Path, specs: Sequence[CardSpec], nodes: int) -> tuple[str, ...]:
        """Make the emulated cards of one of several nodes in a folder; return their uuids."""
        return self._process.cards(folder, specs, nodes)


def node_image_at_hand(engine: Engine) -> str:
    """Return where the nodes' image is without making one, empty where it is nowhere."""
    if node.find() is not None:
        return "with the node image of this testbed"
    chosen = node.choose([engine.program], engine.environ())
    return f"with {chosen.why}" if chosen.official else ""
