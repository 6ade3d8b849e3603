"""Which versions of everything this tree uses, without building or starting anything."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import testbed
from testbed import __version__
from testbed.card import driver_root
from testbed.errors import MissingTool
from testbed.lab.binaries import versions as pinned
from testbed.lab.images import PAUSE, pytorch
from testbed.native import artifacts

_LIBRARIES = ("libvgpu.so", "libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.13")
_PACKAGES = ("kubernetes", "papermill", "typer", "numpy", "aiohttp", "grpcio", "matplotlib")


def versions() -> dict[str, Any]:
    """Return versions by component: strings, and None where something is not there."""
    return {
        "version": __version__,
        "commit": _commit(Path(testbed.__file__).parents[1]),
        "components": {
            "kubernetes": f"v{pinned.KUBERNETES}",
            "etcd": f"v{pinned.ETCD}",
            "containerd": f"v{pinned.CONTAINERD}",
            "pause": PAUSE.rpartition(":")[2],
            "torch": _locked("torch"),
            "driver": driver_root.DRIVER_TEXT,
        },
        "builds": {name: _build(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "packages": {name: _package(name) for name in _PACKAGES},
        "system": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "os": _os_name(),
        },
    }


def _commit(tree: Path) -> str | None:
    """Return the commit of a clone, marked where files differ from it."""
    if not (tree / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _locked(package: str) -> str | None:
    found = re.search(rf"(?m)^{package}==(\S+)", pytorch.LOCK.read_text())
    return found[1] if found else None


def _build(name: str) -> str | None:
    try:
        return artifacts.build_of(artifacts.library(name).read_bytes())
    except MissingTool:
        return None


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()
