"""The PyTorch environment: the unmodified wheel, and libraries of ours under it.

A folder of the cache, bound read-only at ``/opt/testbed/pytorch`` in containers: a closed
virtual environment (``venv``) with torch, and beside it ``standins/``, our CUDA runtime
library and the stand-ins for the other libraries that torch links. They are found through
the containers' loader cache (``ldcache``), elsewhere through ``LD_LIBRARY_PATH``
(``host_command``). NVIDIA's wheels are not installed: torch's DT_RPATH would find them
first, and they refuse an emulated card.

Two entries of the cache: the packages, keyed by lock file and interpreter, and the
environment made of hard links to them, keyed by our libraries too; so a change of ours
installs nothing again and costs no disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import cache, packages
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.images import venv
from testbed.native import artifacts, standins

#: Folder of the environment that holds our libraries.
STANDINS = "standins"
#: Where torch and what it needs are pinned by hash; NVIDIA's wheels and triton left out.
LOCK = Path(__file__).with_name("pytorch.lock")

#: Bumped when this module makes another environment from the same sources.
_RECIPE = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommand:
    """How to run a script with the environment on this machine, without a cluster."""

    #: Put before the script and its arguments.
    argv: tuple[str, ...]
    #: Added to the process's environment.
    environ: Mapping[str, str]


def prepare(progress: Progress) -> Path:
    """Return the environment's folder, made first where it is missing.

    Raises:
        MissingTool: no interpreter, installer or C compiler.
        TestbedError: the download or the build failed.
    """
    python = venv.system_python()
    runtime = artifacts.library("libcudart.so.13")
    packages_key = _packages_key(python)
    sources = [path.read_bytes() for path in standins.sources()]
    key = cache.key_of(packages_key, runtime.read_bytes(), *sources)
    found = cache.find("pytorch", key)
    if found:
        return found
    standins.compiler()  # missing: said before half a gigabyte is downloaded
    base = cache.obtain(
        "pytorch-packages",
        packages_key,
        lambda folder, step: _install(folder, python, step),
        progress,
        "install PyTorch (540 MB to download the first time)",
    )

    def make(folder: Path, step: Step) -> None:
        venv.copy(base, folder)
        standins.build(venv.site_packages(folder, python), runtime, folder / STANDINS, step.update)

    return cache.obtain("pytorch", key, make, progress, "make CUDA libraries for emulated cards")


def downloaded() -> bool:
    """Say whether the cache has the packages, so that nothing large is to be fetched.

    Raises:
        TestbedError: the interpreter for containers is missing.
    """
    return cache.find("pytorch-packages", _packages_key(venv.system_python())) is not None


def _packages_key(python: venv.SystemPython) -> str:
    return cache.key_of(_RECIPE, LOCK.read_bytes(), python.minor)


def _install(folder: Path, python: venv.SystemPython, step: Step) -> None:
    interpreter = venv.create(folder, python)
    packages.install(
        [],
        what="cannot install PyTorch",
        tell=step.update,
        python=interpreter,
        options=["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", LOCK],
    )
    venv.close(folder, step, folder / "lib")


def host_command(environment: Path, driver_root: Path) -> HostCommand:
    """Return how to run a Python script on a driver root's emulated cards.

    Args:
        environment: From ``prepare``.
        driver_root: From ``testbed.card.driver_root.make``; all its cards are visible.
    """
    folders = (driver_root / "driver", environment / STANDINS)
    return HostCommand(
        argv=(str(environment / "bin" / "python3"),),
        environ={
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders)),
            "PYTHONNOUSERSITE": "1",
        },
    )
