"""The programs of clusters: from the cache, downloaded, or built."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.lab import cache, command
from testbed.lab.binaries import build, official, versions
from testbed.lab.binaries.tools import (
    Tool,
    ensure_tools,
    install_command,
    locate,
    missing_tools,
)
from testbed.lab.cluster.protocol import Progress, Step

__all__ = [
    "Binaries",
    "Tool",
    "cached",
    "check_version",
    "ensure",
    "find",
    "install_command",
    "locate",
    "missing_tools",
]

_KIND = "binaries"
_VERSION_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Where every program is.

    ``folder`` holds ``versions.PROGRAMS``, readable for all users, in the cache; the
    programs of Kubernetes may be links to one multi-call binary in the same folder.
    """

    folder: Path
    runc: Path
    nft: Path
    ip: Path
    unshare: Path
    nsenter: Path
    mount: Path
    ldconfig: Path
    python3: Path
    #: Folder of the CNI plugins (ptp, host-local, loopback).
    cni_dir: Path
    kubernetes: str = f"v{versions.KUBERNETES}"

    def path(self, name: str) -> Path:
        """Return the path of a program of the folder."""
        return self.folder / name


def ensure(progress: Progress) -> Binaries:
    """Return all programs, made or installed first where needed.

    Raises:
        MissingTool: the machine lacks a program that only its administrator can install.
        TestbedError: neither a download nor a build succeeded.
    """
    tools = ensure_tools(progress)
    folder = cached() or _make(progress)
    return Binaries(
        folder=folder,
        runc=tools["runc"],
        nft=tools["nft"],
        ip=tools["ip"],
        unshare=tools["unshare"],
        nsenter=tools["nsenter"],
        mount=tools["mount"],
        ldconfig=tools["ldconfig"],
        python3=tools["python3"],
        cni_dir=tools["cni"],
    )


def find(name: str) -> Path | None:
    """Return the path of one program (``kubectl``) if the cache has it."""
    folder = cached()
    return folder / name if folder else None


def cached() -> Path | None:
    """Return the folder of programs if the cache has it."""
    return cache.find(_KIND, _key())


def _key() -> str:
    modules = [
        file
        for name in versions.CLUSTER_MODULES
        for file in (versions.MODULES / name).rglob("*")
        if file.is_file()
    ]
    flags = (versions.KUBERNETES_LDFLAGS, versions.CONTAINERD_LDFLAGS, versions.CONTAINERD_TAGS)
    return cache.key_of(
        *(versions.KUBERNETES, versions.ETCD, versions.CONTAINERD),
        *flags,
        cache.key_of_files(versions.MODULES, modules),
    )


def _make(progress: Progress) -> Path:
    with progress.step("look for official downloads") as step:
        reachable = official.reachable()
        step.update("reachable" if reachable else "no route")
    makers: list[tuple[str, Callable[[Path, Step], None]]] = [
        ("build Kubernetes, etcd and containerd (about 10 minutes, once)", _build)
    ]
    if reachable:
        makers.insert(0, ("download Kubernetes, etcd and containerd", _download))
    text, maker = makers[0]
    try:
        return _obtain(progress, text, maker)
    except TestbedError:
        if len(makers) == 1:
            raise
        # A release that is not there, or a line that broke: the sources give the same.
        return _obtain(progress, *makers[1])


def _obtain(progress: Progress, text: str, maker: Callable[[Path, Step], None]) -> Path:
    def make(folder: Path, step: Step) -> None:
        maker(folder, step)
        _verify(folder)

    return cache.obtain(_KIND, _key(), make, progress, text)


def _download(folder: Path, step: Step) -> None:
    official.download(folder, step)


def _build(folder: Path, step: Step) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".go.", dir=folder.parent))
    try:
        build.build(folder, scratch, step)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _verify(folder: Path) -> None:
    """Start every program once and compare its version."""
    asked = {
        "etcd": (["--version"], versions.ETCD),
        "kubeadm": (["version", "--output=short"], versions.KUBERNETES),
        "kubectl": (["version", "--client"], versions.KUBERNETES),
        "containerd-shim-runc-v2": (["-v"], versions.CONTAINERD),
    }
    for name in versions.PROGRAMS:
        default = versions.CONTAINERD
        if name in versions.KUBERNETES_PROGRAMS:
            default = versions.KUBERNETES
        arguments, version = asked.get(name, (["--version"], default))
        check_version(folder / name, arguments, version)


def check_version(program: Path, arguments: Sequence[str], version: str) -> None:
    """Start a program once.

    Raises:
        TestbedError: it does not start, or says another version.
    """
    what = f"cannot use {program.name}"
    text = command.run([program, *arguments], what=what, timeout_s=_VERSION_S)
    if version not in text:
        raise TestbedError(what, why=f"it is not version {version}: {text.strip()}")
