"""What every kind of cluster does alike: up, down and status around what it does itself."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from testbed.errors import ClusterError
from testbed.lab.cluster import lock
from testbed.lab.cluster.api import Api, Unreachable, is_ready
from testbed.lab.cluster.protocol import ClusterSpec, ClusterStatus, NodeStatus, Progress
from testbed.lab.cluster.started import Started
from testbed.lab.cluster.state import StateFolder, absent, check_name, state_home
from testbed.lab.images.model import Image

R = TypeVar("R", bound=Started)
F = TypeVar("F", bound=StateFolder)
P = TypeVar("P", bound="MakesDriver")


class MakesDriver(Protocol):
    """What all kinds ask of the parts that a cluster is made of."""

    def driver(self) -> str:
        """Return which build of the emulated driver nodes get; empty where it is not built."""
        ...


class NamedCluster(ABC, Generic[R, F, P]):
    """One named cluster with its folder of state and its record; see ``protocol.Cluster``.

    Args:
        name: Its name; two of different names run side by side.
        folders: The kind's state folder.
        record: The kind's record of a start.
        parts: What it is made of.
    """

    provider: ClassVar[str]

    def __init__(self, name: str, folders: type[F], record: type[R], parts: P) -> None:
        self.name = check_name(name)
        self._home = state_home()
        self._lock = self._home / f".{name}.lock"
        self._folders = folders(self._home / name)
        self._records = record
        self._parts = parts

    # --- what each kind tells ----------------------------------------------

    @property
    @abstractmethod
    def context(self) -> str:
        """The kubeconfig's context."""

    @abstractmethod
    def _check(self, spec: ClusterSpec) -> None:
        """Refuse a wish that cannot be, before anything is made for it."""

    @abstractmethod
    def _bring_up(
        self, spec: ClusterSpec, progress: Progress, images: Sequence[Image] | None
    ) -> None:
        """Bring it up where there is nothing of it; leave nothing but logs where that fails."""

    @abstractmethod
    def _keep(
        self, record: R, spec: ClusterSpec, progress: Progress, images: Sequence[Image] | None
    ) -> None:
        """Leave one that is up as it is, refuse another wish, add images that are new."""

    @abstractmethod
    def _load(self, record: R, images: Sequence[Image], progress: Progress) -> None:
        """Give images that are new to the nodes of one that is up."""

    @abstractmethod
    def _end(self, record: R) -> None:
        """End everything of it that runs.

        Raises:
            ClusterError: something does not end.
        """

    @abstractmethod
    def _remove(self, path: Path) -> None:
        """Remove a file or a folder of its state, whoever's files are in it.

        Raises:
            ClusterError: something stays.
        """

    @abstractmethod
    def _gone(self, record: R) -> list[str]:
        """Return what of it no longer runs, a line each."""

    @abstractmethod
    def _addresses(self, record: R, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the address of each node, by name and in the nodes' order.

        Args:
            record: What was started.
            nodes: The API server's objects; empty where it does not answer.
        """

    def _more_problems(self) -> list[str]:
        return []

    def _notes(self, record: R) -> tuple[str, ...]:
        if record.driver in ("", self._parts.driver()):
            return ()
        return ("its cards' driver is of other sources: `testbed down`, then up, makes it anew",)

    def _reach(self, _: R) -> tuple[str, ...]:
        return ()

    # --- what all do -------------------------------------------------------

    def up(
        self, spec: ClusterSpec, progress: Progress, *, images: Sequence[Image] | None = None
    ) -> ClusterStatus:
        self._check(spec)
        top = self._folders.top
        with lock.locked(self._lock, self.context):
            try:
                record = self._record()
                if record is not None and record.stage == "up" and not self._gone(record):
                    self._keep(record, spec, progress, images)
                    return self.status()
                if top.exists():
                    with progress.step("clear what an earlier run left"):
                        self._clear()
                self._bring_up(spec, progress, images)
            finally:
                _remove_if_empty(top)
        return self.status()

    def down(self, progress: Progress) -> None:
        if not self._folders.top.exists():
            return
        with lock.locked(self._lock, self.context), progress.step(f"take {self.context} down"):
            self._clear()
        _remove_if_empty(self._home)

    def load_images(self, images: Sequence[Image], progress: Progress) -> None:
        with lock.locked(self._lock, self.context):
            record = self._record()
            if record is None or record.stage != "up":
                raise ClusterError(
                    f"cluster {self.name!r} is not up", hint=f"testbed up --name {self.name}"
                )
            self._load(record, images, progress)

    def spec(self) -> ClusterSpec | None:
        record = self._record()
        if record is None:
            return None
        return ClusterSpec(nodes=record.nodes, each_node=record.specs(), port=record.asked_port)

    def status(self) -> ClusterStatus:
        record = self._record()
        if record is None:
            return ClusterStatus(name=self.name, provider=self.provider, state="absent")
        problems: list[str] = []
        version, items = "", list[Mapping[str, Any]]()
        try:
            api = self._api(record)
            version, items = api.version(), api.nodes()
        except Unreachable as error:
            problems.append(f"the API server does not answer: {error}")
        if record.stage != "up":
            problems.append(
                "another command is bringing it up"
                if lock.held(self._lock)
                else "the command that brought it up was ended before it was done"
            )
        problems += self._gone(record)
        ready = {each["metadata"]["name"] for each in items if is_ready(each)}
        addresses = self._addresses(record, items)
        nodes = tuple(
            NodeStatus(
                name=name,
                ready=name in ready,
                address=address,
                cards=tuple(record.uuids.get(name, ())),
                profiles=cards,
            )
            for (name, address), cards in zip(addresses.items(), record.specs(), strict=True)
        )
        problems += [f"{each.name} is not Ready" for each in nodes if not each.ready]
        problems += self._more_problems()
        return ClusterStatus(
            name=self.name,
            provider=self.provider,
            state="broken" if problems else "up",
            server=f"https://127.0.0.1:{record.port}",
            kubernetes=version,
            context=self.context,
            kubeconfig=self._folders.kubeconfig,
            nodes=nodes,
            problems=tuple(problems),
            notes=self._notes(record),
            reach=self._reach(record),
            id_range=record.id_range,
        )

    def kubeconfig(self) -> Path:
        path = self._folders.kubeconfig
        if not path.exists():
            default = self.provider == "process"
            raise absent(self.name, options="" if default else f"--provider {self.provider} ")
        return path

    def _api(self, record: R) -> Api:
        """Return the API server, as its administrator.

        Raises:
            Unreachable: there are no keys yet.
        """
        return Api(record.port, self._folders.authority, self._folders.admin)

    def _record(self) -> R | None:
        """Return what is known of the start, None where there was none."""
        return self._records.read(self._folders.record)

    def _clear(self, *, keep_logs: bool = False) -> None:
        """End everything of it, then remove its files."""
        record = self._record()
        if record is not None:
            self._end(record)
        folders = self._folders
        if not folders.top.exists():
            return
        for path in folders.top.iterdir():
            if path != folders.record and not (keep_logs and path == folders.logs):
                self._remove(path)
        # Last: without the record nothing could find what runs again.
        folders.record.unlink(missing_ok=True)
        if not keep_logs:
            self._remove(folders.top)


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()
