"""The cluster of local processes, as the ``Cluster`` protocol asks for it."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from testbed.card.spec import cards_text
from testbed.errors import FULL_HINT, ClusterError, InputError
from testbed.lab.cluster.named import NamedCluster
from testbed.lab.cluster.process import (
    files,
    identity,
    launch,
    layout,
    logs,
    node,
    processes,
    start,
    watch,
)
from testbed.lab.cluster.process.parts import Parts
from testbed.lab.cluster.process.record import Record
from testbed.lab.cluster.protocol import ClusterSpec, Progress
from testbed.lab.cluster.started import image_list
from testbed.lab.images.model import Image
from testbed.stack import names

_IMPORT_S = 300.0
#: With less, kubelet evicts pods (``imagefs.available`` in ``node.py``), and etcd ends soon.
_ROOM_BYTES = 100 << 20


class ProcessCluster(NamedCluster[Record, layout.Folders, Parts]):
    """One named cluster of local processes.

    Args:
        name: Its name; two of different names run side by side.
        parts: Makes programs, images and cards when ``up`` needs them; the
            product's own by default.
    """

    provider: ClassVar[str] = "process"

    def __init__(self, name: str = "vgpu", *, parts: Parts | None = None) -> None:
        super().__init__(name, layout.Folders, Record, parts or Parts())

    @property
    def context(self) -> str:
        return f"testbed-{self.name}"

    @property
    def driver_root(self) -> str:
        return names.EMULATED_DRIVER_ROOT

    # --- commands ----------------------------------------------------------

    def prepare(self, progress: Progress) -> dict[str, Path]:
        programs = self._parts.programs(progress)
        made = {image.reference: image.archive for image in self._parts.images(progress)}
        return {"binaries": programs.binaries, **made}

    def _check(self, spec: ClusterSpec) -> None:
        layout.nodes(self.name, spec.nodes)  # refuses a number that is not possible
        for cards in spec.by_node():
            self._parts.check_cards(cards)

    def log_files(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(self._folders.logs.glob("*.log"))}

    def node_root(self, node: str) -> Path | None:
        record = self._record()
        found = self._inits(record, node) if record else []
        return Path("/proc", str(found[0].pid), "root") if found else None

    def collect_logs(self, folder: Path) -> None:
        for source, name in ((self._folders.logs, ""), (self._folders.status, "status")):
            if source.exists():
                logs.collect(source, folder / name)

    def enter(self, where: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs another inside a node (or ``outer``), as its root.

        Raises:
            ClusterError: it does not run.
        """
        record = self._record()
        found = self._inits(record, where) if record else []
        if record is None or not found:
            raise ClusterError(f"{where} of cluster {self.name!r} does not run")
        ids = ["--setuid", "0", "--setgid", "0"] if record.id_range else ["--preserve-credentials"]
        spaces = ["--user", "--mount", "--net", "--pid", "--uts", "--ipc"]
        return ["nsenter", "-t", str(found[0].pid), *spaces, *ids, "--", *command]

    # --- up ----------------------------------------------------------------

    def _keep(
        self,
        record: Record,
        spec: ClusterSpec,
        progress: Progress,
        images: Sequence[Image] | None,
    ) -> None:
        asked = (spec.nodes, start.card_lists(spec))
        if asked != (record.nodes, record.cards) or spec.port not in (0, record.port):
            raise InputError(
                f"cluster {self.name!r} is up with other nodes, cards or port",
                why=f"it has --nodes {record.nodes} --cards "
                f"'{cards_text(record.specs())}' on port {record.port}",
                hint=f"testbed down --name {self.name}, or another --name",
            )
        self._wait(record, progress)
        self._load(record, self._parts.images(progress) if images is None else images, progress)

    def _load(self, record: Record, images: Sequence[Image], progress: Progress) -> None:
        known = record.known_images()
        new = [each for each in images if each not in known]
        if new:
            with progress.step("add images"):
                self._add_images(record, new)

    def _add_images(self, record: Record, new: Sequence[Image]) -> None:
        """Import images into the running nodes; the earlier ones may still be in use."""
        names = {each.reference for each in new}
        kept = [each for each in record.known_images() if each.reference not in names]
        neutral = start.neutral(self._folders)
        bound = len(neutral.binds)
        text = start.front_text(Path(record.runc), [*kept, *new], neutral)
        archives = [neutral.path(each.archive) for each in new]
        if len(neutral.binds) > bound:
            raise ClusterError(
                "new images lend folders that the running cluster does not see",
                why=", ".join(source for source, _ in neutral.binds[bound:]),
                hint=f"testbed down --name {self.name}, then up again",
            )
        start.write_front(self._folders, text)
        for each in layout.nodes(self.name, record.nodes):
            command = node.import_command(record.binaries, archives)
            done = subprocess.run(
                self.enter(each.name, command), capture_output=True, text=True, timeout=_IMPORT_S
            )
            if done.returncode:
                raise ClusterError("an image cannot be imported", why=done.stderr.strip())
        images = image_list([*kept, *new])
        dataclasses.replace(record, images=images).write(self._folders.record)

    def _bring_up(
        self, spec: ClusterSpec, progress: Progress, images: Sequence[Image] | None
    ) -> None:
        identity.preflight()
        ids = identity.choose(self.name)
        with launch.listener(spec.port) as listening:
            port = listening.getsockname()[1]
            programs = self._parts.programs(progress)
            images = self._parts.images(progress) if images is None else images
            try:
                with progress.step("start the cluster's processes"):
                    record, binds = start.write(
                        self._folders,
                        start.Start(
                            name=self.name,
                            spec=spec,
                            nodes=layout.nodes(self.name, spec.nodes),
                            identity=ids,
                            port=port,
                            programs=programs,
                            images=images,
                            driver=self._parts.driver(),
                            make_cards=self._parts.cards,
                        ),
                    )
                    record.write(self._folders.record)

                    def started(pid: int) -> None:
                        nonlocal record
                        found = processes.read(pid)
                        record = dataclasses.replace(
                            record, pid=pid, started=found.started if found else ""
                        )
                        record.write(self._folders.record)

                    launch.launch(self._folders, ids, binds, listening, record.token, started)
                listening.close()  # the namespaces have it now
                self._wait(record, progress)
                self._found_pid1(record).write(self._folders.record)
            except BaseException:
                self._clear(keep_logs=True)
                raise

    def _wait(self, record: Record, progress: Progress) -> None:
        with progress.step("wait for the nodes") as step:
            watch.until_ready(
                self._folders,
                self._api(record),
                layout.nodes(self.name, record.nodes),
                lambda: self._alive(record),
                lambda text: step.update(f"waiting for {text}"),
            )

    def _found_pid1(self, record: Record) -> Record:
        found = self._inits(record, "outer")
        if found:
            record = dataclasses.replace(record, pid1=found[0].pid, pid1_started=found[0].started)
        return dataclasses.replace(record, stage="up")

    @staticmethod
    def _inits(record: Record, where: str) -> list[processes.Process]:
        """Return the pid 1 of some namespaces, first: a child of it may look the same
        for the moment between its fork and its exec."""
        plan = f"{layout.STATE}/inside/{where}.json"
        members = processes.members(record.token)
        found = [each for each in members if each.is_pid1 and plan in each.argv]
        return sorted(found, key=lambda each: int(each.started))

    # --- down --------------------------------------------------------------

    def _end(self, record: Record) -> None:
        left = processes.end(self._holders(record))
        if left:
            raise ClusterError(
                f"processes of {self.context} do not end",
                why=", ".join(f"{each.pid} {' '.join(each.argv)[:80]}" for each in left),
                hint="run `testbed down` again; a process in the kernel may need a moment",
            )

    def _remove(self, path: Path) -> None:
        files.remove(path, identity.choose(self.name))

    def _holders(self, record: Record) -> list[processes.Process]:
        """Return the processes whose end ends the cluster, pid 1 first."""
        found = {each.pid: each for each in processes.members(record.token)}
        for pid, began in ((record.pid1, record.pid1_started), (record.pid, record.started)):
            known = processes.read(pid) if pid else None
            if known is not None and known.started == began:
                found[pid] = known
        return sorted(found.values(), key=lambda each: not each.is_pid1)

    # --- state -------------------------------------------------------------

    def _addresses(self, record: Record, _: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        return {each.name: each.address for each in layout.nodes(self.name, record.nodes)}

    def _gone(self, record: Record) -> list[str]:
        return [] if self._alive(record) else ["its processes have ended"]

    def _more_problems(self) -> list[str]:
        found = [what for what, _ in watch.failures(self._folders, 3)]
        with contextlib.suppress(OSError):  # taken down meanwhile
            if shutil.disk_usage(self._folders.top).free < _ROOM_BYTES:
                found.append(f"there is no room left at {self._folders.top}: {FULL_HINT}")
        return found

    def _alive(self, record: Record) -> bool:
        held = processes.read(record.pid)
        return held is not None and held.started == record.started
