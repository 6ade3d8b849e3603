"""The nodes of a kind cluster that is there: what they are given, what they lack, their end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError, WaitTimeout
from testbed.lab import cache, command
from testbed.lab.cluster.api import Api, Unreachable
from testbed.lab.cluster.kind import gpu, gpu_nodes, layout, node, own
from testbed.lab.cluster.kind.record import Record
from testbed.lab.cluster.protocol import Progress
from testbed.lab.cluster.started import image_list
from testbed.lab.images import front as front_config
from testbed.lab.images.model import Image

_READY_S = 120.0
_DELETE_S = 120.0
_EXPORT_S = 90.0
_IMPORT_S = 300.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster by its record; one whose ``up`` is not done counts as well."""

    folders: layout.Folders
    record: Record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def nodes(self) -> tuple[layout.Node, ...]:
        return layout.nodes(self.name, self.record.nodes)

    def api(self) -> Api:
        """Return the API server, as its administrator.

        Raises:
            Unreachable: there are no keys yet.
        """
        return Api(self.record.port, self.folders.authority, self.folders.admin)

    def set_up(self) -> None:
        """Give nodes cards and logs; again after they were restarted."""
        for each in self.nodes:
            self.record.reached().inside(
                each.name,
                ["sh", "-c", node.setup_script()],
                what=f"{each.name} cannot be given its cards",
            )
        if gpu.wanted(self.record.specs()):
            gpus = gpu_nodes.again(self.record.uuids)
            for each, part in zip(self.nodes, gpus.nodes, strict=True):
                gpu_nodes.set_up(self.record.reached(), each.name, part)

    def load(self, images: Sequence[Image], progress: Progress) -> None:
        """Add those images that the nodes have not."""
        known = self.record.known_images()
        if any(each not in known for each in images):
            with progress.step("add images"):
                self.add_images(images)

    def add_images(self, images: Sequence[Image]) -> Record:
        """Import images into the nodes; the earlier ones may still be in use.

        Returns:
            The record with them, as it was written.
        """
        known = self.record.known_images()
        new = [each for each in images if each not in known]
        again = {each.reference for each in new}
        kept = [each for each in known if each.reference not in again]
        self.write_front([*kept, *new])
        archives = [layout.relocate(cache.root(), each.archive) for each in new]
        for each in self.nodes:
            self.record.reached().inside(
                each.name,
                ["sh", "-c", node.import_script(archives)],
                what=f"{each.name} does not take an image",
                timeout_s=_IMPORT_S,
            )
        record = dataclasses.replace(self.record, images=image_list([*kept, *new]))
        record.write(self.folders.record)
        return record

    def write_front(self, images: Sequence[Image]) -> None:
        """Write the configuration of the nodes' OCI front, which reads it at every container."""
        text = front_config.configuration(
            images,
            runtime=self.record.runc,
            arguments=(),
            drop_cgroups=False,
            drop_oom_score=False,
            relocate=lambda path: layout.relocate(cache.root(), path),
        )
        folder = self.folders.settings
        folder.mkdir(mode=0o755, exist_ok=True)
        part = folder / "front.conf.new"
        part.write_text(text)
        part.chmod(0o644)
        part.replace(folder / "front.conf")

    def wait(self, progress: Progress) -> None:
        """Wait until all nodes are Ready and take pods.

        Raises:
            WaitTimeout: they are not.
        """
        with progress.step("wait for the nodes") as step:
            until = time.monotonic() + _READY_S
            waiting = ""
            while missing := self._missing():
                if missing != waiting:
                    waiting = missing
                    step.update(f"waiting for {waiting}")
                if time.monotonic() > until:
                    raise WaitTimeout(
                        f"the cluster is not ready after {_READY_S:.0f} s",
                        why=f"still waiting for {waiting}",
                        artifacts=self.folders.logs,
                    )
                time.sleep(_POLL_S)

    def _missing(self) -> str:
        """Return what the cluster still lacks, or nothing."""
        try:
            api = self.api()
            ready = api.ready_nodes()
            unready = [each.name for each in self.nodes if not ready.get(each.name)]
            if unready:
                return ", ".join(unready)
            return "" if api.serves_pods() else "the default service account"
        except Unreachable:
            return "API server"

    def gone(self) -> list[str]:
        """Return what is no longer there."""
        if self.record.own and own.init_of(self.record.token) is None:
            return [f"its own {self.record.engine} has ended"]
        found = self.record.reached().containers(self.name)
        lacking = [each.name for each in self.nodes if not found.get(each.name, {}).get("running")]
        return [f"{name} does not run in {self.record.engine}" for name in lacking]

    def export(self, folder: Path) -> bool:
        """Export the nodes' logs as kind does; tell whether there are any."""
        try:
            engine = self.record.reached()
            if not engine.containers(self.name):
                return False
            command.run(
                [self.record.kind, "export", "logs", folder, "--name", self.name],
                what="kind cannot export its logs",
                timeout_s=_EXPORT_S,
                environ=engine.environ(),
            )
        except TestbedError:
            pass
        return folder.exists() and any(folder.iterdir())

    def delete(self) -> None:
        """Delete it from an engine that stays.

        Raises:
            TestbedError: the engine is away, or its nodes do not go.
        """
        engine = self.record.reached()
        # An engine that is away still has the nodes, and starts them again when it is back.
        engine.call(
            *("ps", "--quiet"),
            what=f"{engine.program} does not answer, and nodes of {self.name!r} may be in it",
            hint=f"start {engine.program}, then testbed down --name {self.name}; if it is gone"
            f" for good: rm -r {self.folders.top}",
        )
        if not engine.containers(self.name):
            return
        command.run(
            [
                *(self.record.kind, "delete", "cluster", "--name", self.name),
                *("--kubeconfig", self.folders.kubeconfig),
            ],
            what=f"kind cannot delete cluster {self.name!r}",
            timeout_s=_DELETE_S,
            environ=engine.environ(),
        )
