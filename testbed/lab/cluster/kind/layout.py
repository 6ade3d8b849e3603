"""Where things are: the state folder on the host, and the same things in a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from testbed.errors import InputError
from testbed.lab.cluster.state import StateFolder
from testbed.lab.images.model import Image

#: As many as the command line offers; each is a container with a kubelet of its own.
MAX_NODES = 16

#: In a node: what the host lends, read-only.
CACHE = "/mnt/testbed/cache"
HOST = "/mnt/testbed/host"
#: In a node: the cards as they were made; what runs is a copy without a disk below it.
SEED = "/mnt/testbed/cards"
#: In a node: where the OCI front looks for its configuration.
SETTINGS = "/etc/vgpu-testbed"
#: In a node: logs of its services as text.
SERVICE_LOGS = "/var/log/testbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, as kind names it."""

    name: str
    role: str  # control-plane | worker
    index: int  # from 1, in the order of the cards' lists


def nodes(cluster: str, count: int) -> tuple[Node, ...]:
    """Return the nodes of a cluster: the control plane, which takes pods, and workers.

    Raises:
        InputError: there are none, or too many.
    """
    if not 1 <= count <= MAX_NODES:
        raise InputError(f"a cluster of {count} nodes is not possible", hint=f"1 to {MAX_NODES}")
    made = [Node(name=f"{cluster}-control-plane", role="control-plane", index=1)]
    for index in range(2, count + 1):
        number = "" if index == 2 else str(index - 1)
        made.append(Node(name=f"{cluster}-worker{number}", role="worker", index=index))
    return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the host in a node."""

    source: str
    target: str
    read_only: bool = True


def relocate(cache: Path, path: Path) -> str:
    """Return where a node sees a file of the host: below the cache, or lent by the system."""
    real = path.absolute()
    if real.is_relative_to(cache):
        return f"{CACHE}/{real.relative_to(cache)}"
    return HOST + str(real)


def lent(cache: Path, images: Iterable[Image]) -> tuple[Mount, ...]:
    """Return the mounts through which a node sees what its images lend.

    The whole cache is one mount, so that images that are made later need no other; of the
    system ``/usr`` is one, and each other folder is one.
    """
    found = [Mount(source=str(cache), target=CACHE)]
    for image in images:
        for bind in image.binds:
            source = bind.source.absolute()
            if source.is_relative_to(cache):
                continue
            top = "/usr" if source.is_relative_to("/usr") else str(source)
            found.append(Mount(source=top, target=HOST + top))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Folders(StateFolder):
    """The state folder of a kind cluster."""

    RECORD: ClassVar[str] = "kind.json"

    @property
    def config(self) -> Path:
        """What ``kind create cluster`` is given."""
        return self.top / "kind.yaml"

    @property
    def settings(self) -> Path:
        """The folder that nodes see as ``SETTINGS``."""
        return self.top / "settings"

    @property
    def engine(self) -> Path:
        """What an engine of our own is started from: plans, sockets, programs' names."""
        return self.top / "engine"

    def cards(self, node: Node) -> Path:
        return self.top / "cards" / node.name

    def mounts(self, node: Node, lent_mounts: Sequence[Mount]) -> tuple[Mount, ...]:
        """Return all mounts of a node."""
        return (
            *lent_mounts,
            Mount(source=str(self.settings), target=SETTINGS),
            Mount(source=str(self.cards(node)), target=SEED),
        )
