"""The image of kind's nodes: put together here, or kind's own where it can be pulled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import binaries, cache, images
from testbed.lab.binaries import kind, versions
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.images.node import choice, contents, control_plane, official, packages
from testbed.lab.images.node.choice import Choice
from testbed.lab.images.node.control_plane import Programs
from testbed.lab.images.node.layer import Layer, tree, write_archive

__all__ = ["NAME", "NO_DNS", "Choice", "NodeImage", "choose", "find", "prepare", "pulled"]

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
_KIND = "node-image"
_ARCHIVE = "node.tar"
_PAUSE_SOURCE = Path(__file__).parents[3] / "native/ocifront/pause.c"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeImage:
    """An image for ``kind create cluster --image``."""

    #: As ``docker load`` names it; podman puts ``localhost/`` before it.
    reference: str
    #: What the engine loads; None for an image that it pulls.
    archive: Path | None
    kubernetes: str
    #: Version of the configuration file of its containerd, whose tables patches name.
    containerd: int = 2
    #: Its containers' runtime.
    runc: str = "/usr/sbin/runc"
    #: Entries that ``kubeadmConfigPatches`` must have for it.
    kubeadm_patches: tuple[str, ...] = (NO_DNS,)


def choose(
    engine: Sequence[str] | None,
    environ: Mapping[str, str] | None = None,
    *,
    offline: str = "this engine has no network",
) -> Choice:
    """Choose the nodes' image for an engine: ``pulled`` or ``prepare``; takes at most 6 s.

    Args:
        engine: The engine's program and its global options; None where it cannot pull.
        environ: The whole environment of the program; the own one if not given.
        offline: Why it cannot pull, where ``engine`` is None.
    """
    asked = engine or ()
    return choice.choose(
        offline="" if engine else offline,
        made=find() is not None,
        present=lambda: official.present(asked, environ),
        pullable=lambda: official.pullable(asked, environ=environ),
        official=f"kindest/node:{official.KUBERNETES}",
    )


def pulled() -> NodeImage:
    """Return kind's own image."""
    return NodeImage(
        reference=official.REFERENCE,
        archive=None,
        kubernetes=official.KUBERNETES,
        runc="/usr/local/sbin/runc",
        kubeadm_patches=(),
    )


def find() -> NodeImage | None:
    """Return the node image that is put together here if the cache has it."""
    folder, crictl, debs = binaries.cached(), kind.find_crictl(), packages.find()
    if not (folder and crictl and debs):
        return None
    key = _key(folder, crictl, debs)
    entry = cache.find(_KIND, key)
    return _image(entry, key) if entry else None


def prepare(progress: Progress) -> NodeImage:
    """Return the node image that is put together here, made the first time.

    Raises:
        MissingTool: the machine lacks a program that only its administrator can install.
        TestbedError: a program or a package cannot be had.
    """
    programs = binaries.ensure(progress)
    crictl = kind.ensure_crictl(progress)
    debs = packages.fetch(progress)
    key = _key(programs.folder, crictl, debs)
    found = cache.find(_KIND, key)
    if found:
        return _image(found, key)
    servers = Programs.of({name: programs.path(name) for name in control_plane.SERVERS})
    called = (*control_plane.SERVERS, *contents.CALLED)
    pause = (images.native_folder(progress) / "vgpu-pause").read_bytes()

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

        write_archive(folder / _ARCHIVE, f"{NAME}:{key}", contents.config(), fill)

    entry = cache.obtain(_KIND, key, make, progress, f"write image {NAME}:{key}")
    return _image(entry, key)


def _image(entry: Path, key: str) -> NodeImage:
    return NodeImage(
        reference=f"{NAME}:{key}",
        archive=entry / _ARCHIVE,
        kubernetes=f"v{versions.KUBERNETES}",
    )


def _key(programs: Path, crictl: Path, debs: Path) -> str:
    """Return the key of everything that the image is made from; entries' names stand for them."""
    return cache.key_of(
        *(_RECIPE, programs.name, crictl.parent.name, images.PAUSE),
        _PAUSE_SOURCE.read_bytes(),
        contents.recipe(),
        *(part for name, path, _ in tree(contents.FILES) for part in (name, path.read_bytes())),
        *(f"{file.name} {file.stat().st_size}" for file in packages.files(debs)),
    )
