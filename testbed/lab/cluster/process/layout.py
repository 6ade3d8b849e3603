"""Where things are: the state folder on the host, the same folder inside, addresses.

Everything that runs in the namespaces sees the state at ``/mnt/state`` and the
cache at ``/mnt/cache``, whoever's home they lie in: no folder of a home need be
traversable for the ids of a mapped range, and the homes themselves are hidden.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import ClusterError, InputError

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

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


def state_home() -> Path:
    """Return the folder that holds every testbed's state."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path there is invalid and to be ignored.
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "vgpu-testbed"


def known_names() -> list[str]:
    """Return the testbeds that there are, of either kind."""
    home = state_home()
    return sorted(each.name for each in home.iterdir() if each.is_dir()) if home.is_dir() else []


def absent(name: str, *, options: str = "") -> ClusterError:
    """Return the error of who wants something of a testbed that is not there.

    Args:
        name: Perhaps a mistyped one, so the others are named.
        options: Of ``testbed up``, before ``--name``.
    """
    there = ", ".join(known_names())
    return ClusterError(
        f"there is no testbed {name!r}",
        why=f"known are {there}" if there else "",
        hint=f"testbed up {options}--name {name}",
    )


def check_name(name: str) -> str:
    """Return a cluster's name that can be part of node names and file names.

    Raises:
        InputError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name a testbed",
            why="it becomes part of node names",
            hint="use at most 30 lower-case letters, digits and hyphens, such as vgpu",
        )
    return name


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
class Folders:
    """The state folder of one cluster, on the host."""

    top: Path

    @property
    def record(self) -> Path:
        return self.top / "cluster.json"

    @property
    def kubeconfig(self) -> Path:
        return self.top / "kubeconfig"

    @property
    def admin(self) -> Path:
        """The administrator's certificate and key, for our own calls."""
        return self.top / "admin.pem"

    @property
    def authority(self) -> Path:
        return self.top / "ca.crt"

    @property
    def logs(self) -> Path:
        return self.top / "logs"

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
