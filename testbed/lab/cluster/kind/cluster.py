"""The ``kind`` cluster: create, keep, look at, take down."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import yaml

from testbed.card.spec import cards_text
from testbed.errors import ClusterError, InputError, TestbedError, WaitTimeout
from testbed.lab import cache, command
from testbed.lab.cluster.kind import (
    adaptations,
    config,
    drift,
    gpu,
    gpu_nodes,
    layout,
    node,
    own,
    packages,
)
from testbed.lab.cluster.kind import choice as choices
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.parts import NodeImage, Parts
from testbed.lab.cluster.kind.record import Record, mount_list
from testbed.lab.cluster.process import files, launch, lock, logs
from testbed.lab.cluster.process import layout as shared
from testbed.lab.cluster.process.api import Api, Unreachable
from testbed.lab.cluster.process.record import image_list
from testbed.lab.cluster.protocol import ClusterSpec, ClusterStatus, NodeStatus, Progress
from testbed.lab.images import front as front_config
from testbed.lab.images.model import Image
from testbed.stack import names

_CREATE_S = 300.0
_READY_S = 120.0
_DELETE_S = 120.0
_EXPORT_S = 90.0
_IMPORT_S = 300.0
_POLL_S = 0.1
_TAINT = "node-role.kubernetes.io/control-plane"


class KindCluster:
    """One named cluster of real kind.

    Args:
        name: Its name, also for kind: its context is ``kind-<name>``.
        parts: Makes tools, images and cards when ``up`` needs them.
    """

    provider: ClassVar[str] = "kind"

    def __init__(self, name: str = "vgpu", *, parts: Parts | None = None) -> None:
        self.name = shared.check_name(name)
        self._parts = parts or Parts()
        self._home = shared.state_home()
        self._folders = layout.Folders(self._home / name)
        self._lock = self._home / f".{name}.lock"

    @property
    def context(self) -> str:
        return f"kind-{self.name}"

    @property
    def driver_root(self) -> str:
        record = Record.read(self._folders.record)
        real = record is not None and gpu.wanted(record.specs())
        return gpu.DRIVER_ROOT if real else names.EMULATED_DRIVER_ROOT

    # --- commands ----------------------------------------------------------

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

    def up(
        self, spec: ClusterSpec, progress: Progress, *, images: Sequence[Image] | None = None
    ) -> ClusterStatus:
        wanted = layout.nodes(self.name, spec.nodes)
        if not gpu.wanted(spec.by_node()):
            for cards in spec.by_node():
                self._parts.check_cards(cards)
        with lock.locked(self._lock, self.context):
            try:
                record = Record.read(self._folders.record)
                if record is not None and record.stage == "up" and self._alive(record):
                    return self._keep(record, spec, wanted, progress, images)
                if self._folders.top.exists():
                    with progress.step("clear what an earlier run left"):
                        self._clear()
                self._bring_up(spec, wanted, progress, images)
            finally:
                files.remove_if_empty(self._folders.top)
        return self.status()

    def down(self, progress: Progress) -> None:
        if not self._folders.top.exists():
            return
        with lock.locked(self._lock, self.context), progress.step(f"take {self.context} down"):
            self._clear()
        files.remove_if_empty(self._home)

    def status(self) -> ClusterStatus:
        record = Record.read(self._folders.record)
        if record is None:
            return ClusterStatus(name=self.name, provider=self.provider, state="absent")
        problems: list[str] = []
        version = ""
        ready: dict[str, bool] = {}
        addresses: dict[str, str] = {}
        try:
            api = self._api(record)
            version, items = api.version(), api.get("/api/v1/nodes")["items"]
            ready = api.ready_nodes()
            addresses = {each["metadata"]["name"]: _address(each) for each in items}
        except Unreachable as error:
            problems.append(f"the API server does not answer: {error}")
        if record.stage != "up":
            problems.append(
                "another command is bringing it up"
                if lock.held(self._lock)
                else "the command that brought it up was ended before it was done"
            )
        problems += self._gone(record)
        nodes = tuple(
            NodeStatus(
                name=each.name,
                ready=ready.get(each.name, False),
                address=addresses.get(each.name, ""),
                cards=tuple(record.uuids.get(each.name, ())),
                profiles=cards,
            )
            for each, cards in zip(
                layout.nodes(self.name, record.nodes), record.specs(), strict=True
            )
        )
        problems += [f"{each.name} is not Ready" for each in nodes if not each.ready]
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
        )

    def kubeconfig(self) -> Path:
        if not self._folders.kubeconfig.exists():
            raise ClusterError(
                f"there is no cluster {self.name!r}",
                hint=f"testbed up --provider kind --name {self.name}",
            )
        return self._folders.kubeconfig

    def load_images(self, images: Sequence[Image], progress: Progress) -> None:
        with lock.locked(self._lock, self.context):
            record = Record.read(self._folders.record)
            if record is None or record.stage != "up":
                raise ClusterError(
                    f"cluster {self.name!r} is not up", hint=f"testbed up --name {self.name}"
                )
            self._load(record, images, progress)

    def log_files(self) -> dict[str, Path]:
        found = {path.stem: path for path in sorted(self._folders.logs.glob("*.log"))}
        found |= {path.stem: path for path in sorted(self._folders.engine.glob("logs/*.log"))}
        record = Record.read(self._folders.record)
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
        record = Record.read(self._folders.record)
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
        record = Record.read(self._folders.record)
        if record is None:
            return
        with tempfile.TemporaryDirectory(prefix="testbed-kind-") as scratch:
            if self._export(record, Path(scratch)):
                logs.collect(Path(scratch), folder / "kind")

    # --- up ----------------------------------------------------------------

    def _keep(
        self,
        record: Record,
        spec: ClusterSpec,
        wanted: Sequence[layout.Node],
        progress: Progress,
        images: Sequence[Image] | None,
    ) -> ClusterStatus:
        """A second ``up``: the same cluster stays; images that are new are added."""
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
        self._set_up(record, wanted)
        self._wait(record, wanted, progress)
        self._load(record, prepared, progress)
        return self.status()

    def _bring_up(
        self,
        spec: ClusterSpec,
        wanted: Sequence[layout.Node],
        progress: Progress,
        images: Sequence[Image] | None,
    ) -> None:
        chosen = choices.look()
        self._refuse_foreign(chosen.engine)
        gpus = gpu_nodes.planned(spec.by_node())
        tools = self._parts.tools(progress)
        prepared = self._parts.images(progress) if images is None else images
        image = self._parts.node(chosen.engine, progress)
        lent = layout.lent(cache.root(), prepared)
        token = secrets.token_hex(12)
        with launch.listener(spec.port) as listening:
            port = listening.getsockname()[1]
            place = None
            if chosen.engine is None:
                place = self._place(chosen.program, token, port, progress)
            try:
                self._folders.top.mkdir(parents=True, mode=0o755)
                self._folders.logs.mkdir()
                engine = own.engine(place) if place else chosen.engine
                assert engine is not None
                record = Record(
                    name=self.name,
                    token=token,
                    stage="starting",
                    engine=engine.program,
                    own=engine.own,
                    environment=dict(engine.environment),
                    data=str(place.data) if place else "",
                    port=port,
                    nodes=spec.nodes,
                    cards=cards_text(spec.by_node()),
                    image=image.reference,
                    runc=image.runc,
                    kind=str(tools.kind),
                    mounts=mount_list(lent),
                    driver="" if gpus else self._parts.driver(),
                    told=list(gpus.told()) if gpus else [],
                )
                record.write(self._folders.record)
                made = image.archive is not None
                for line in adaptations.told(own=engine.own, made=made):
                    with progress.step(f"adapted to this host: {line}"):
                        pass
                if place is not None:
                    with progress.step(f"start {chosen.why}") as step:
                        own.start(place, listening, step.update)
                listening.close()
                record = self._make_cards(record, spec, wanted, gpus)
                self._write_front(record, prepared)
                self._create(record, image, wanted, lent, gpus, progress)
                self._finish(record, wanted, prepared, progress)
            except BaseException:
                self._keep_evidence()
                self._clear(keep_logs=True)
                raise

    def _refuse_foreign(self, engine: Engine | None) -> None:
        """Refuse a name under which somebody has a kind cluster already.

        Raises:
            InputError: there is one.
        """
        if engine is not None and engine.containers(self.name):
            raise InputError(
                f"there is a kind cluster {self.name!r} that the testbed has not made",
                hint=f"use another --name, or kind delete cluster --name {self.name}",
            )

    def _place(self, program: str, token: str, port: int, progress: Progress) -> own.Place:
        return own.Place(
            folder=self._folders.engine,
            token=token,
            data=cache.root() / "kind" / f"{self.name}-{token}",
            programs=packages.prepare(program, progress),
            front=self._parts.front(progress),
            runc=self._parts.runc(progress),
            port=port,
        )

    def _make_cards(
        self,
        record: Record,
        spec: ClusterSpec,
        wanted: Sequence[layout.Node],
        gpus: gpu.GpuPlan | None,
    ) -> Record:
        uuids = {}
        for each, cards in zip(wanted, spec.by_node(), strict=True):
            folder = self._folders.cards(each)
            folder.mkdir(parents=True)
            if gpus is not None:
                uuids[each.name] = list(gpus.nodes[each.index - 1].devices)
            else:
                uuids[each.name] = list(self._parts.cards(folder, cards, spec.nodes))
        record = dataclasses.replace(record, uuids=uuids)
        record.write(self._folders.record)
        return record

    def _write_front(self, record: Record, images: Sequence[Image]) -> None:
        """Write the configuration of the nodes' OCI front, which reads it at every container."""
        text = front_config.configuration(
            images,
            runtime=record.runc,
            arguments=(),
            drop_cgroups=False,
            drop_oom_score=False,
            relocate=lambda path: layout.relocate(cache.root(), path),
        )
        folder = self._folders.settings
        folder.mkdir(mode=0o755, exist_ok=True)
        part = folder / "front.conf.new"
        part.write_text(text)
        part.chmod(0o644)
        part.replace(folder / "front.conf")

    def _create(
        self,
        record: Record,
        image: NodeImage,
        wanted: Sequence[layout.Node],
        lent: Sequence[layout.Mount],
        gpus: gpu.GpuPlan | None,
        progress: Progress,
    ) -> None:
        engine = record.reached()
        if image.archive is not None and not engine.has_image(image.reference):
            with progress.step("load the node image"):
                engine.load(image.archive)
        document = config.render(
            name=self.name,
            image=engine.named(image.reference) if image.archive else image.reference,
            nodes=[
                config.NodeConfig(
                    node=each,
                    mounts=(
                        *self._folders.mounts(each, lent),
                        *(gpus.nodes[each.index - 1].mounts if gpus else ()),
                    ),
                )
                for each in wanted
            ],
            port=record.port,
            front=layout.relocate(cache.root(), self._parts.front(progress)),
            containerd=image.containerd,
            kubeadm_patches=image.kubeadm_patches,
        )
        self._folders.config.write_text(config.text(document))
        text = f"create the kind cluster in {engine.shown()}"
        with progress.step(text) as step:
            command.run(
                [
                    *(record.kind, "create", "cluster", "--name", self.name, "--retain"),
                    *("--config", self._folders.config),
                    *("--kubeconfig", self._folders.kubeconfig),
                ],
                what="kind cannot create the cluster",
                timeout_s=_CREATE_S,
                tell=lambda line: step.update(line.strip(" •✓✗")),
                environ=engine.environ(),
            )

    def _finish(
        self,
        record: Record,
        wanted: Sequence[layout.Node],
        images: Sequence[Image],
        progress: Progress,
    ) -> None:
        self._write_keys()
        self._set_up(record, wanted)
        with progress.step("add images"):
            record = self._add_images(record, images)
        if len(wanted) > 1:
            self._allow_pods(record, wanted[0])
        self._wait(record, wanted, progress)
        dataclasses.replace(record, stage="up").write(self._folders.record)

    def _allow_pods(self, record: Record, control: layout.Node) -> None:
        """Let the control plane of several nodes take pods, as that of one does."""
        record.reached().inside(
            control.name,
            [
                *("kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"),
                *("taint", "nodes", control.name, f"{_TAINT}-"),
            ],
            what=f"{control.name} cannot be made to take pods",
        )

    def _write_keys(self) -> None:
        """Write what our own calls need of the kubeconfig."""
        document = yaml.safe_load(self._folders.kubeconfig.read_text())
        self._folders.kubeconfig.chmod(0o600)
        cluster = document["clusters"][0]["cluster"]
        user = document["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"])
        self._folders.authority.write_bytes(authority)
        self._folders.admin.touch(mode=0o600)
        self._folders.admin.write_bytes(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )

    def _set_up(self, record: Record, wanted: Sequence[layout.Node]) -> None:
        for each in wanted:
            record.reached().inside(
                each.name,
                ["sh", "-c", node.setup_script()],
                what=f"{each.name} cannot be given its cards",
            )
        if gpu.wanted(record.specs()):
            gpus = gpu_nodes.again(record.uuids)
            for each, part in zip(wanted, gpus.nodes, strict=True):
                gpu_nodes.set_up(record.reached(), each.name, part)

    def _load(self, record: Record, images: Sequence[Image], progress: Progress) -> None:
        known = record.known_images()
        if any(each not in known for each in images):
            with progress.step("add images"):
                self._add_images(record, images)

    def _add_images(self, record: Record, images: Sequence[Image]) -> Record:
        """Import images into the nodes; the earlier ones may still be in use."""
        known = record.known_images()
        new = [each for each in images if each not in known]
        again = {each.reference for each in new}
        kept = [each for each in known if each.reference not in again]
        self._write_front(record, [*kept, *new])
        archives = [layout.relocate(cache.root(), each.archive) for each in new]
        for each in layout.nodes(self.name, record.nodes):
            record.reached().inside(
                each.name,
                ["sh", "-c", node.import_script(archives)],
                what=f"{each.name} does not take an image",
                timeout_s=_IMPORT_S,
            )
        record = dataclasses.replace(record, images=image_list([*kept, *new]))
        record.write(self._folders.record)
        return record

    def _wait(self, record: Record, wanted: Sequence[layout.Node], progress: Progress) -> None:
        with progress.step("wait for the nodes") as step:
            until = time.monotonic() + _READY_S
            waiting = ""
            while missing := self._missing(record, wanted):
                if missing != waiting:
                    waiting = missing
                    step.update(f"waiting for {waiting}")
                if time.monotonic() > until:
                    raise WaitTimeout(
                        f"the cluster is not ready after {_READY_S:.0f} s",
                        why=f"still waiting for {waiting}",
                        artifacts=self._folders.logs,
                    )
                time.sleep(_POLL_S)

    def _missing(self, record: Record, wanted: Sequence[layout.Node]) -> str:
        """Return what the cluster still lacks, or nothing."""
        try:
            api = self._api(record)
            ready = api.ready_nodes()
            unready = [each.name for each in wanted if not ready.get(each.name)]
            if unready:
                return ", ".join(unready)
            return "" if api.serves_pods() else "the default service account"
        except Unreachable:
            return "API server"

    # --- down --------------------------------------------------------------

    def _keep_evidence(self) -> None:
        """Keep the logs of what did not come up, as far as there are any."""
        record = Record.read(self._folders.record)
        with contextlib.suppress(TestbedError, OSError):
            source = self._folders.engine / "logs"
            if source.exists():
                logs.collect(source, self._folders.logs)
            if record is not None:
                self._export(record, self._folders.logs / "kind")

    def _export(self, record: Record, folder: Path) -> bool:
        """Export the nodes' logs as kind does; tell whether there are any."""
        try:
            engine = record.reached()
            if not engine.containers(self.name):
                return False
            command.run(
                [record.kind, "export", "logs", folder, "--name", self.name],
                what="kind cannot export its logs",
                timeout_s=_EXPORT_S,
                environ=engine.environ(),
            )
        except TestbedError:
            pass
        return folder.exists() and any(folder.iterdir())

    def _clear(self, *, keep_logs: bool = False) -> None:
        """End every container and process of the cluster, then remove its files."""
        record = Record.read(self._folders.record)
        if record is not None and record.own:
            # All of it goes with the engine.
            own.stop(record.token, Path(record.data) if record.data else None)
        elif record is not None:
            self._delete(record)
        if not self._folders.top.exists():
            return
        for path in self._folders.top.iterdir():
            if path != self._folders.record and not (keep_logs and path == self._folders.logs):
                _remove(path)
        # Last: without the record nothing could find engine and containers again.
        self._folders.record.unlink(missing_ok=True)
        if not keep_logs:
            _remove(self._folders.top)

    def _delete(self, record: Record) -> None:
        engine = record.reached()
        if not engine.containers(self.name):
            return
        command.run(
            [
                *(record.kind, "delete", "cluster", "--name", self.name),
                *("--kubeconfig", self._folders.kubeconfig),
            ],
            what=f"kind cannot delete cluster {self.name!r}",
            timeout_s=_DELETE_S,
            environ=engine.environ(),
        )

    # --- state -------------------------------------------------------------

    def _api(self, record: Record) -> Api:
        return Api(record.port, self._folders.authority, self._folders.admin)

    def _alive(self, record: Record) -> bool:
        return not self._gone(record)

    def _gone(self, record: Record) -> list[str]:
        """Return what is no longer there."""
        if record.own and own.init_of(record.token) is None:
            return [f"its own {record.engine} has ended"]
        found = record.reached().containers(self.name)
        wanted = layout.nodes(self.name, record.nodes)
        lacking = [each.name for each in wanted if not found.get(each.name, {}).get("running")]
        return [f"{name} does not run in {record.engine}" for name in lacking]

    def _notes(self, record: Record) -> tuple[str, ...]:
        notes = list(record.told)
        if record.own:
            words = " ".join(
                f"{key}={value}"
                for key, value in record.reached().environment.items()
                if key == "DOCKER_HOST"
            )
            notes.append(
                f"it runs in an own {record.engine.capitalize()}, which goes with it"
                + (f"; for docker and kind: export {words}" if words else "")
            )
        if record.driver not in ("", self._parts.driver()):
            notes.append(
                "its cards' driver is of other sources: `testbed down`, then up, makes it anew"
            )
        return tuple(notes)


def _address(item: dict[str, object]) -> str:
    status = item.get("status")
    addresses = status.get("addresses", []) if isinstance(status, dict) else []
    return next((str(a["address"]) for a in addresses if a["type"] == "InternalIP"), "")


def _remove(path: Path) -> None:
    """Remove a file or a folder.

    Raises:
        ClusterError: something stays.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    if path.exists():
        raise ClusterError(f"{path} cannot be removed", hint=f"sudo rm -rf {path}")
