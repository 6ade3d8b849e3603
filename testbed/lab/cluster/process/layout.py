"""Where things are: the state folder on the host, the same folder inside, addresses.

Everything that runs in the namespaces sees the state at ``/mnt/state`` and the
cache at ``/mnt/cache``, whoever's home they lie in: no folder of a home need be
traversable for the ids of a mapped range, and the homes themselves are hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from testbed.errors import InputError
from testbed.lab.cluster.state import StateFolder

ROOT = "/mnt"
STATE = f"{ROOT}/state"
CACHE = f"{ROOT}/cache"
#: Folders of the state that are seen inside. The rest, the administrator's
#: certificate above all, is the host's: a pod may ask for any folder of its node.
SHARED = ("inside", "pki", "etcd", "nodes", "logs", "status")
#: The host's folders that are seen at their own paths; all ids may read them.
SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64")

API_ADDRESS = "10.99.0.1"
API_PORT = 6443
API_SERVICE = "10.96.0.1"
SERVICE_RANGE = "10.96.0.0/16"
MAX_NODES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: its name, its addresses, its folders as seen inside."""

    name: str
    index: int  # from 1

    @property
    def address(self) -> str:
        return f"10.99.0.{100 + self.index}"

    @property
    def pods(self) -> str:
        return f"10.88.{self.index}.0/24"

    @property
    def link(self) -> str:
        return f"veth{self.index}"


def nodes(cluster: str, count: int) -> tuple[Node, ...]:
    """Return the nodes of a cluster.

    Raises:
        InputError: there are none, or too many.
    """
    if not 1 <= count <= MAX_NODES:
        raise InputError(f"a cluster of {count} nodes is not possible", hint=f"1 to {MAX_NODES}")
    return tuple(Node(name=f"{cluster}-node-{i}", index=i) for i in range(1, count + 1))


@dataclass(slots=True, kw_only=True)
class Neutral:
    """Maps paths of the host to the paths inside, and remembers what must be bound."""

    state: Path
    cache: Path
    binds: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.binds = [(str(self.state / each), f"state/{each}") for each in SHARED]
        self.binds.append((str(self.cache), "cache"))

    def path(self, host: Path) -> str:
        """Return where a file or folder of the host is found inside."""
        real = host.absolute()
        for top, inside in ((self.state, STATE), (self.cache, CACHE)):
            if real.is_relative_to(top):
                return str(Path(inside) / real.relative_to(top))
        if any(real.is_relative_to(each) for each in SYSTEM):
            return str(real)
        source = str(real)
        for bound, name in self.binds:
            if bound == source:
                return f"{ROOT}/{name}"
        name = f"lent/{len(self.binds)}"
        self.binds.append((source, name))
        return f"{ROOT}/{name}"


@dataclass(frozen=True, slots=True)
class Folders(StateFolder):
    """The state folder of a cluster of processes."""

    RECORD: ClassVar[str] = "cluster.json"

    @property
    def status(self) -> Path:
        return self.top / "status"

    @property
    def inside(self) -> Path:
        """Programs and their configuration that hold no secret."""
        return self.top / "inside"

    @property
    def pki(self) -> Path:
        return self.top / "pki"

    @property
    def etcd(self) -> Path:
        return self.top / "etcd"

    @property
    def nodes(self) -> Path:
        return self.top / "nodes"

    @property
    def stage(self) -> Path:
        """An empty folder, on which the neutral paths are laid out."""
        return self.top / "stage"

    def node(self, node: Node) -> Path:
        return self.nodes / node.name
