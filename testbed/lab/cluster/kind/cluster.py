"""The ``kind`` cluster: create, keep, look at, take down."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from testbed.card.spec import cards_text
from testbed.errors import ClusterError, InputError, TestbedError
from testbed.lab import cache
from testbed.lab.cluster.kind import choice as choices
from testbed.lab.cluster.kind import drift, gpu, gpu_nodes, layout, own, packages, reach
from testbed.lab.cluster.kind.create import Creation
from testbed.lab.cluster.kind.parts import Parts
from testbed.lab.cluster.kind.record import Record, mount_list
from testbed.lab.cluster.kind.running import Running
from testbed.lab.cluster.named import NamedCluster
from testbed.lab.cluster.process import launch, logs
from testbed.lab.cluster.protocol import ClusterSpec, Progress
from testbed.lab.images.model import Image
from testbed.stack import names


class KindCluster(NamedCluster[Record, layout.Folders, Parts]):
    """One named cluster of real kind.

    Args:
        name: Its name, also for kind: its context is ``kind-<name>``.
        parts: Makes tools, images and cards when ``up`` needs them.
    """

    provider: ClassVar[str] = "kind"

    def __init__(self, name: str = "vgpu", *, parts: Parts | None = None) -> None:
        super().__init__(name, layout.Folders, Record, parts or Parts())

    @property
    def context(self) -> str:
        return f"kind-{self.name}"

    @property
    def driver_root(self) -> str:
        record = self._record()
        real = record is not None and gpu.wanted(record.specs())
        return gpu.DRIVER_ROOT if real else names.EMULATED_DRIVER_ROOT

    # --- commands ----------------------------------------------------------

    def check(self) -> None:
        """Refuse a machine where it cannot come up, before anything is made for it.

        Raises:
            InputError, ClusterError, MissingTool: no engine will do, or somebody else's
                cluster has the name.
        """
        if self._record() is None:
            self._chosen()

    def prepare(self, progress: Progress) -> dict[str, Path]:
        chosen = choices.look()
        tools = self._parts.tools(progress)
        made = {"kind": tools.kind, "kubectl": tools.kubectl}
        if chosen.engine is None:
            made[chosen.program] = packages.prepare(chosen.program, progress).root
        image = self._parts.node(chosen.engine, progress)
        if image.archive is not None:
            made[image.reference] = image.archive
        return made | {each.reference: each.archive for each in self._parts.images(progress)}

    def _check(self, spec: ClusterSpec) -> None:
        layout.nodes(self.name, spec.nodes)  # refuses a number that is not possible
        if not gpu.wanted(spec.by_node()):
            for cards in spec.by_node():
                self._parts.check_cards(cards)

    def log_files(self) -> dict[str, Path]:
        found = {path.stem: path for path in sorted(self._folders.logs.glob("*.log"))}
        found |= {path.stem: path for path in sorted(self._folders.engine.glob("logs/*.log"))}
        record = self._record()
        for each in layout.nodes(self.name, record.nodes) if record else ():
            root = self.node_root(each.name)
            if root is None:
                continue
            for path in sorted((root / layout.SERVICE_LOGS.lstrip("/")).glob("*.log")):
                found[f"{each.name}-{path.stem}"] = path
            # Of a component that was started anew the newest counts.
            for path in sorted((root / "var/log/pods").glob("kube-system_*/*/*.log")):
                component = path.parent.name
                name = component if component != "kube-proxy" else f"{each.name}-{component}"
                found[name] = path
        return found

    def node_root(self, node: str) -> Path | None:
        record = self._record()
        if record is None:
            return None
        pid = int(record.reached().containers(self.name).get(node, {}).get("pid", 0))
        if pid and record.own:
            pid = own.outer_pid(record.token, pid)
        root = Path("/proc", str(pid), "root")
        return root if pid and os.access(root / "etc", os.R_OK) else None

    def collect_logs(self, folder: Path) -> None:
        for source in (self._folders.logs, self._folders.engine / "logs"):
            if source.exists():
                logs.collect(source, folder)
        record = self._record()
        if record is None:
            return
        with tempfile.TemporaryDirectory(prefix="testbed-kind-") as scratch:
            if Running(self._folders, record).export(Path(scratch)):
                logs.collect(Path(scratch), folder / "kind")

    # --- up ----------------------------------------------------------------

    def _keep(
        self,
        record: Record,
        spec: ClusterSpec,
        progress: Progress,
        images: Sequence[Image] | None,
    ) -> None:
        chosen = choices.asked_program()
        drift.check(
            record,
            drift.Wanted(
                nodes=spec.nodes,
                cards=cards_text(spec.by_node()),
                port=spec.port,
                image="",
                mounts=[],
                engine=chosen,
            ),
        )
        prepared = self._parts.images(progress) if images is None else images
        image = self._parts.node(None if record.own else record.reached(), progress)
        drift.check(
            record,
            drift.Wanted(
                nodes=record.nodes,
                cards=record.cards,
                port=0,
                image=image.reference,
                mounts=mount_list(layout.lent(cache.root(), prepared)),
            ),
        )
        running = Running(self._folders, record)
        running.set_up()
        running.wait(progress)
        running.load(prepared, progress)

    def _bring_up(
        self, spec: ClusterSpec, progress: Progress, images: Sequence[Image] | None
    ) -> None:
        chosen = self._chosen()
        creation = Creation(
            name=self.name,
            folders=self._folders,
            parts=self._parts,
            spec=spec,
            chosen=chosen,
            gpus=gpu_nodes.planned(spec.by_node()),
            image=self._parts.node(chosen.engine, progress),
            images=self._parts.images(progress) if images is None else images,
            progress=progress,
        )
        with launch.listener(spec.port) as listening:
            try:
                creation.run(listening)
            except Exception:
                self._keep_evidence()
                self._clear(keep_logs=True)
                raise
            except BaseException:  # somebody wants it to end, not to know why
                self._clear()
                raise

    def _chosen(self) -> choices.Choice:
        chosen = choices.look()
        if chosen.engine is not None and chosen.engine.containers(self.name):
            raise InputError(
                f"there is a kind cluster {self.name!r} that the testbed has not made",
                hint=f"use another --name, or kind delete cluster --name {self.name}",
            )
        return chosen

    # --- down --------------------------------------------------------------

    def _keep_evidence(self) -> None:
        """Keep the logs of what did not come up, as far as there are any."""
        record = self._record()
        with contextlib.suppress(TestbedError, OSError):
            source = self._folders.engine / "logs"
            if source.exists():
                logs.collect(source, self._folders.logs)
            if record is not None:
                Running(self._folders, record).export(self._folders.logs / "kind")

    def _end(self, record: Record) -> None:
        if record.own:
            # All of it goes with the engine.
            own.stop(record.token, Path(record.data) if record.data else None)
        else:
            Running(self._folders, record).delete()

    def _remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        if path.exists():
            raise ClusterError(f"{path} cannot be removed", hint=f"sudo rm -rf {path}")

    # --- state -------------------------------------------------------------

    def _addresses(self, record: Record, nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        told = {each["metadata"]["name"]: _address(each) for each in nodes}
        return {
            each.name: told.get(each.name, "") for each in layout.nodes(self.name, record.nodes)
        }

    def _gone(self, record: Record) -> list[str]:
        return Running(self._folders, record).gone()

    def _load(self, record: Record, images: Sequence[Image], progress: Progress) -> None:
        Running(self._folders, record).load(images, progress)

    def _notes(self, record: Record) -> tuple[str, ...]:
        return (*record.told, *super()._notes(record))

    def _reach(self, record: Record) -> tuple[str, ...]:
        if not record.own or own.init_of(record.token) is None:
            return ()
        return (reach.told(record),)


def _address(item: Mapping[str, Any]) -> str:
    addresses = (item.get("status") or {}).get("addresses", [])
    return next((str(a["address"]) for a in addresses if a["type"] == "InternalIP"), "")
