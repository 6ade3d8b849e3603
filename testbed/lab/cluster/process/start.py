"""All that must lie in the state folder before the first process starts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import ClusterError
from testbed.lab import cache
from testbed.lab.cluster.process import control_plane, files, launch, layout, node, pki
from testbed.lab.cluster.process.identity import Identity
from testbed.lab.cluster.process.parts import Programs
from testbed.lab.cluster.process.record import Record
from testbed.lab.cluster.protocol import CardSpec, ClusterSpec
from testbed.lab.cluster.started import image_list
from testbed.lab.images import front as front_config
from testbed.lab.images.model import Image

_SNAPSHOTTERS = ("overlayfs", "native")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one start of a cluster is made of."""

    name: str
    spec: ClusterSpec
    nodes: Sequence[layout.Node]
    identity: Identity
    port: int
    programs: Programs
    images: Sequence[Image]
    #: Build of the emulated driver.
    driver: str
    #: Makes the emulated cards of one of so many nodes in a folder; returns their uuids.
    make_cards: Callable[[Path, Sequence[CardSpec], int], tuple[str, ...]]


def neutral(folders: layout.Folders) -> layout.Neutral:
    return layout.Neutral(state=folders.top, cache=cache.root())


def card_lists(spec: ClusterSpec) -> list[list[list[str | int]]]:
    """Return each node's cards as the record keeps them.

    Raises:
        InputError: there are lists for another number of nodes.
    """
    return [[[each.profile, each.count] for each in cards] for cards in spec.by_node()]


def write(folders: layout.Folders, start: Start) -> tuple[Record, list[tuple[str, str]]]:
    """Write plans, configurations, certificates and cards.

    Returns:
        The record of this start, and the folders to bind below the neutral root.
    """
    folders.top.mkdir(parents=True, mode=0o755)
    folders.top.chmod(0o755)  # whatever the umask: other ids look for the programs here
    for folder in (*(folders.top / each for each in layout.SHARED), folders.stage):
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)
    for folder in (folders.etcd, folders.pki):
        folder.chmod(0o700)
    where = neutral(folders)
    cache.root().mkdir(parents=True, exist_ok=True)  # bound even where nothing was made yet
    pki.write_all(folders, start.name, start.nodes, start.port)
    launch.copy_programs(folders.inside)
    uuids = {
        each.name: _write_cards(folders, each, start, cards)
        for each, cards in zip(start.nodes, start.spec.by_node(), strict=True)
    }
    token = secrets.token_hex(12)
    _write_plans(folders, start, token, where)
    for folder in (folders.logs, folders.status, folders.pki, folders.etcd, folders.nodes):
        files.give(folder, start.identity)
    record = Record(
        name=start.name,
        token=token,
        stage="starting",
        port=start.port,
        asked_port=start.spec.port,
        nodes=len(start.nodes),
        cards=card_lists(start.spec),
        id_range=start.identity.id_range,
        binaries=where.path(start.programs.binaries),
        runc=str(start.programs.runc),
        driver=start.driver,
        uuids=uuids,
        images=image_list(start.images),
    )
    return record, where.binds


def front_text(runc: Path, images: Sequence[Image], where: layout.Neutral) -> str:
    """Return the configuration of the OCI front."""
    return front_config.configuration(images, runtime=where.path(runc), relocate=where.path)


def write_front(folders: layout.Folders, text: str) -> None:
    """Write the configuration of the OCI front, which reads it at every container."""
    _write(folders.inside / "front.conf", text)


def _write_cards(
    folders: layout.Folders, each: layout.Node, start: Start, cards: Sequence[CardSpec]
) -> list[str]:
    own = folders.node(each)
    for name in ("containerd", "probe", "driver-root"):
        (own / name).mkdir(parents=True)
    (folders.logs / "pods" / each.name).mkdir(parents=True)
    return list(start.make_cards(own / "driver-root", cards, len(start.nodes)))


def _write_plans(folders: layout.Folders, start: Start, token: str, where: layout.Neutral) -> None:
    inside = folders.inside
    programs = node.Programs(
        binaries=where.path(start.programs.binaries),
        front=where.path(start.programs.front),
        cni=where.path(start.programs.cni),
        front_config=(front_config.CONFIG_VARIABLE, f"{layout.STATE}/inside/front.conf"),
    )
    write_front(folders, front_text(start.programs.runc, start.images, where))
    sandbox = _pause(start.images)
    for snapshotter in _SNAPSHOTTERS:
        text = node.containerd_config(programs, sandbox, snapshotter)
        _write(inside / f"containerd-{snapshotter}.toml", text)
    _write(inside / "resolv.conf", "# the testbed has no DNS\n")
    archives = [where.path(each.archive) for each in start.images]
    for each in start.nodes:
        others = [other for other in start.nodes if other != each]
        _write(inside / f"{each.name}.json", node.plan(each, others, programs, archives).json())
        _write(inside / f"kubelet-{each.name}.yaml", node.kubelet_config(each))
        _write(inside / f"cni-{each.name}.conflist", node.cni_config(each))
    outer = control_plane.plan(
        token=token,
        binaries=programs.binaries,
        nodes=start.nodes,
        python=launch.PYTHON,
        init=f"{layout.STATE}/inside/init.py",
        relay=f"{layout.STATE}/inside/relay.py",
    )
    _write(inside / "outer.json", outer.json())


def _pause(images: Sequence[Image]) -> str:
    """Return the reference of the image that holds a pod's namespaces.

    Raises:
        ClusterError: there is none.
    """
    for image in images:
        if image.name == node.PAUSE:
            return image.reference
    raise ClusterError(f"no image is named {node.PAUSE}", why="every pod needs it")


def _write(path: Path, text: str) -> None:
    """Write a file anew, readable for all ids; a reader sees the old or the new one."""
    part = path.with_name(path.name + ".new")
    part.write_text(text)
    part.chmod(0o644)
    part.replace(path)
