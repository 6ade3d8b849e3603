"""The values that images are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A folder or file that the host lends to a container, read-only."""

    source: Path
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as nodes import it, and what the OCI front adds when it runs."""

    #: Name and tag, as pods write them.
    reference: str
    #: Archive for ``ctr images import``.
    archive: Path
    binds: tuple[Bind, ...] = ()

    @property
    def name(self) -> str:
        """The reference without its tag: ``testbed/base``."""
        return self.reference.rpartition(":")[0]


def find(images: Sequence[Image], name: str) -> Image:
    """Return the first image of that name (``testbed/base``).

    Raises:
        KeyError: none has it.
    """
    for image in images:
        if image.name == name:
            return image
    raise KeyError(name)
