"""What every kind of cluster offers: ``process``, ``kind``, ``existing``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Protocol

from testbed.card.spec import CardSpec as CardSpec
from testbed.errors import InputError

if TYPE_CHECKING:  # what makes images reports its progress by this module's protocol
    from testbed.lab.images.model import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What to bring up."""

    nodes: int = 1
    #: Cards of every node.
    cards: tuple[CardSpec, ...] = (CardSpec(),)
    #: Cards of each node, in the nodes' order, where they differ; ``cards`` is unused then.
    each_node: tuple[tuple[CardSpec, ...], ...] = ()
    #: Port on 127.0.0.1 of the API server; 0 lets the provider choose a free one.
    port: int = 0

    def by_node(self) -> tuple[tuple[CardSpec, ...], ...]:
        """Return the cards of each node, in the nodes' order.

        Raises:
            InputError: there are lists for another number of nodes.
        """
        if not self.each_node:
            return (self.cards,) * self.nodes
        if len(self.each_node) != self.nodes:
            raise InputError(
                f"cards are given for {len(self.each_node)} nodes, and there are {self.nodes}",
                hint="give one list for all nodes, or one for each, with semicolons between",
            )
        return self.each_node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    name: str
    ready: bool
    address: str = ""
    cards: tuple[str, ...] = ()  # uuids
    #: Profiles of the cards, as they were asked for; empty where nobody knows.
    profiles: tuple[CardSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """What ``testbed status`` shows."""

    name: str
    provider: str
    state: str  # absent | up | broken
    server: str = ""
    kubernetes: str = ""
    context: str = ""
    kubeconfig: Path | None = None
    nodes: tuple[NodeStatus, ...] = ()
    problems: tuple[str, ...] = field(default=())
    #: What is no problem, and good to know.
    notes: tuple[str, ...] = ()
    #: How other programs reach it: of use for one that stays up.
    reach: tuple[str, ...] = ()
    #: Whether pods may run as other users than 0, and with an fsGroup.
    id_range: bool = True
    #: When the first of the stack's certificates ends, ISO 8601 in UTC; empty without a stack.
    certificates_until: str = ""


class Progress(Protocol):
    """Where steps are reported; one line a step with its time."""

    def step(self, text: str) -> Step:
        """Begin a step; use it as a context manager."""
        ...


class Step(Protocol):
    def update(self, text: str) -> None:
        """Tell what is going on inside a step that takes long."""
        ...

    def __enter__(self) -> Step: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class Cluster(Protocol):
    """One named cluster of one provider.

    ``up`` on a cluster that is up and answers changes nothing; ``down`` on one that
    is absent does nothing. A failed ``up`` leaves nothing behind but its logs.
    """

    provider: ClassVar[str]
    name: str

    @property
    def context(self) -> str:
        """The kubeconfig's context."""
        ...

    def prepare(self, progress: Progress) -> Mapping[str, Path]:
        """Make once what ``up`` needs, and start nothing; return what was made, by name.

        Raises:
            MissingTool, TestbedError.
        """
        ...

    def up(
        self, spec: ClusterSpec, progress: Progress, *, images: Sequence[Image] | None = None
    ) -> ClusterStatus:
        """Bring the cluster up and wait until its nodes are Ready.

        Args:
            spec: What it shall be.
            progress: Told each step.
            images: What its nodes get, where the caller has made it already.

        Raises:
            InputError, MissingTool, ClusterError.
        """
        ...

    def down(self, progress: Progress) -> None:
        """Take down every process, mount, namespace and file of the cluster."""
        ...

    def spec(self) -> ClusterSpec | None:
        """Return what was asked for when it was brought up; None where it is absent."""
        ...

    def status(self) -> ClusterStatus: ...

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig (mode 0600).

        Raises:
            ClusterError: the cluster is absent.
        """
        ...

    def load_images(self, images: Sequence[Image], progress: Progress) -> None:
        """Give images to the nodes of a cluster that is up; known ones cost nothing.

        Raises:
            ClusterError: the cluster is not up, or a node does not take an image.
        """
        ...

    @property
    def driver_root(self) -> str:
        """The manifest value ``driverRoot`` for this cluster's nodes."""
        ...

    def log_files(self) -> Mapping[str, Path]:
        """Return the logs of the cluster's own processes, by name; empty where there are none."""
        ...

    def node_root(self, node: str) -> Path | None:
        """Return where a node's files are seen from here, None where they are not.

        Who reads there follows no links: pods can write below it.
        """
        ...

    def collect_logs(self, folder: Path) -> None:
        """Copy the logs of every component into a folder, without secrets."""
        ...
