"""How a kind cluster comes up: engine, cards, configuration, kind itself, images."""

from __future__ import annotations

import base64
import dataclasses
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from testbed.card.spec import cards_text
from testbed.lab import cache, command
from testbed.lab.cluster.kind import adaptations, config, gpu, layout, own, packages
from testbed.lab.cluster.kind.choice import Choice
from testbed.lab.cluster.kind.parts import NodeImage, Parts
from testbed.lab.cluster.kind.place import Place
from testbed.lab.cluster.kind.record import Record, mount_list
from testbed.lab.cluster.kind.running import Running
from testbed.lab.cluster.protocol import ClusterSpec, Progress
from testbed.lab.images.model import Image

_CREATE_S = 300.0
_TAINT = "node-role.kubernetes.io/control-plane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """One start of a cluster, and what it is made of."""

    name: str
    folders: layout.Folders
    parts: Parts
    spec: ClusterSpec
    chosen: Choice
    gpus: gpu.GpuPlan | None
    image: NodeImage
    images: Sequence[Image]
    progress: Progress

    def run(self, listening: socket.socket) -> None:
        """Bring it up; the caller clears what there is of it if this fails.

        Args:
            listening: Holds the API server's port on 127.0.0.1.

        Raises:
            TestbedError.
        """
        progress = self.progress
        token = secrets.token_hex(12)
        tools = self.parts.tools(progress)
        place = self._place(token, listening.getsockname()[1])
        engine = own.engine(place) if place else self.chosen.engine
        assert engine is not None  # the choice is one or the other
        self.folders.top.mkdir(parents=True, mode=0o755)
        self.folders.logs.mkdir()
        record = Record(
            name=self.name,
            token=token,
            stage="starting",
            engine=engine.program,
            own=engine.own,
            environment=dict(engine.environment),
            data=str(place.data) if place else "",
            port=listening.getsockname()[1],
            asked_port=self.spec.port,
            nodes=self.spec.nodes,
            cards=cards_text(self.spec.by_node()),
            image=self.image.reference,
            runc=self.image.runc,
            kind=str(tools.kind),
            mounts=mount_list(self._lent()),
            driver="" if self.gpus else self.parts.driver(),
            told=list(self.gpus.told()) if self.gpus else [],
        )
        record.write(self.folders.record)
        for line in adaptations.told(own=engine.own, made=self.image.archive is not None):
            with progress.step(f"adapted to this host: {line}"):
                pass
        if place is not None:
            with progress.step(f"start {self.chosen.why}") as step:
                own.start(place, listening, step.update)
        listening.close()  # what serves the port now has it, or binds it itself
        record = dataclasses.replace(record, uuids=self._make_cards())
        record.write(self.folders.record)
        running = Running(self.folders, record)
        running.write_front(self.images)
        self._create(record)
        self._write_keys()
        running.set_up()
        with progress.step("add images"):
            record = running.add_images(self.images)
        if len(running.nodes) > 1:
            self._allow_pods(record, running.nodes[0])
        Running(self.folders, record).wait(progress)
        dataclasses.replace(record, stage="up").write(self.folders.record)

    def _lent(self) -> tuple[layout.Mount, ...]:
        return layout.lent(cache.root(), self.images)

    def _place(self, token: str, port: int) -> Place | None:
        """Return where an own engine is to be; None where one is there."""
        if self.chosen.engine is not None:
            return None
        return Place(
            folder=self.folders.engine,
            token=token,
            data=cache.root() / "kind" / f"{self.name}-{token}",
            programs=packages.prepare(self.chosen.program, self.progress),
            front=self.parts.front(self.progress),
            runc=self.parts.runc(self.progress),
            port=port,
        )

    def _make_cards(self) -> dict[str, list[str]]:
        """Make the cards of each node; return their uuids by node."""
        uuids = {}
        wanted = layout.nodes(self.name, self.spec.nodes)
        for each, cards in zip(wanted, self.spec.by_node(), strict=True):
            folder = self.folders.cards(each)
            folder.mkdir(parents=True)
            if self.gpus is not None:
                uuids[each.name] = list(self.gpus.nodes[each.index - 1].devices)
            else:
                uuids[each.name] = list(self.parts.cards(folder, cards, self.spec.nodes))
        return uuids

    def _create(self, record: Record) -> None:
        engine, image, gpus = record.reached(), self.image, self.gpus
        lent = self._lent()
        if image.archive is not None and not engine.has_image(image.reference):
            with self.progress.step("load the node image"):
                engine.load(image.archive)
        document = config.render(
            name=self.name,
            image=engine.named(image.reference) if image.archive else image.reference,
            nodes=[
                config.NodeConfig(
                    node=each,
                    mounts=(
                        *self.folders.mounts(each, lent),
                        *(gpus.nodes[each.index - 1].mounts if gpus else ()),
                    ),
                )
                for each in layout.nodes(self.name, record.nodes)
            ],
            port=record.port,
            front=layout.relocate(cache.root(), self.parts.front(self.progress)),
            containerd=image.containerd,
            kubeadm_patches=image.kubeadm_patches,
        )
        self.folders.config.write_text(config.text(document))
        text = f"create the kind cluster in {engine.shown()}"
        # Killed with this command: kind would go on alone, beside the `down` that comes next.
        with self.progress.step(text) as step:
            command.run(
                command.leashed(
                    *(record.kind, "create", "cluster", "--name", self.name, "--retain"),
                    *("--config", self.folders.config),
                    *("--kubeconfig", self.folders.kubeconfig),
                ),
                what="kind cannot create the cluster",
                timeout_s=_CREATE_S,
                tell=lambda line: step.update(line.strip(" •✓✗")),
                environ=engine.environ(),
                # "could not find a log line" is what it says of used up inotify instances.
                hint="testbed doctor --provider kind   says what this machine lacks",
            )

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
        document = yaml.safe_load(self.folders.kubeconfig.read_text())
        self.folders.kubeconfig.chmod(0o600)
        cluster = document["clusters"][0]["cluster"]
        user = document["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"])
        self.folders.authority.write_bytes(authority)
        self.folders.admin.touch(mode=0o600)
        self.folders.admin.write_bytes(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )
