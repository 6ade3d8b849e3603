"""The image of kind's nodes: put together here, or kind's own where it can be pulled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import binaries, cache, images
from testbed.lab.binaries import kind, versions
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.images.node import contents, control_plane, packages
from testbed.lab.images.node.control_plane import Programs
from testbed.lab.images.node.layer import Layer, tree, write_archive

__all__ = ["NAME", "NO_DNS", "NodeImage", "prepare"]

NAME = "testbed/kind-node"
#: A ``kubeadmConfigPatches`` entry for nodes of this image: it holds no CoreDNS, and without
#: this kubeadm asks for one, whose pods would then wait for an image for ever.
NO_DNS = """\
kind: ClusterConfiguration
apiVersion: kubeadm.k8s.io/v1beta4
dns:
  disabled: true
"""
_RECIPE = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeImage:
    """An image for ``kind create cluster --image``."""

    #: As ``docker load`` names it; podman puts ``localhost/`` before it.
    reference: str
    #: What the engine loads; None for an image that it pulls.
    archive: Path | None
    kubernetes: str


def prepare(progress: Progress) -> NodeImage:
    """Return the node image that is put together here, made the first time.

    Raises:
        MissingTool: the machine lacks a program that only its administrator can install.
        TestbedError: a program or a package cannot be had.
    """
    programs = binaries.ensure(progress)
    crictl = kind.ensure_crictl(progress)
    debs = packages.fetch(progress)
    pause = (images.native_folder(progress) / "vgpu-pause").read_bytes()
    servers = Programs.of({name: programs.path(name) for name in control_plane.SERVERS})
    called = (*control_plane.SERVERS, *contents.CALLED)
    key = cache.key_of(
        *(_RECIPE, programs.folder.name, crictl.parent.name, images.PAUSE),
        hashlib.sha256(pause).digest(),
        contents.recipe(),
        cache.key_of_files(contents.FILES, [path for _, path, _ in tree(contents.FILES)]),
        *(f"{file.name} {file.stat().st_size}" for file in packages.files(debs)),
    )
    reference = f"{NAME}:{key}"

    def make(folder: Path, step: Step) -> None:
        step.update("images of the control plane")

        def tools(layer: Layer) -> None:
            contents.fill_proxy_tools(layer, debs)

        pieces = control_plane.pieces(servers, tools, images.PAUSE, pause)
        step.update("root file system")
        parts = contents.Parts(
            packages=debs,
            programs=Programs.of({name: programs.path(name) for name in called}),
            tools=(*map(programs.path, versions.CONTAINERD_PROGRAMS), crictl),
            kubernetes=programs.kubernetes,
            pause=images.PAUSE,
            images=pieces,
        )

        def fill(layer: Layer) -> None:
            contents.fill(layer, parts)

        write_archive(folder / "node.tar", reference, contents.config(), fill)

    folder = cache.obtain("node-image", key, make, progress, f"write image {reference}")
    return NodeImage(
        reference=reference, archive=folder / "node.tar", kubernetes=programs.kubernetes
    )
