"""kind, and crictl for node images of our own: from the cache, downloaded, or built."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.lab import binaries, cache
from testbed.lab.binaries import build, official, versions
from testbed.lab.cluster.protocol import Progress, Step

_KIND = "kind-tools"

_CRICTL = build.Program(
    name="crictl",
    module="crictl",
    package="sigs.k8s.io/cri-tools/cmd/crictl",
    ldflags=versions.CRICTL_LDFLAGS,
)
_KIND_PROGRAM = build.Program(
    name="kind", module="kind", package="sigs.k8s.io/kind", ldflags=versions.KIND_LDFLAGS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTools:
    """The programs that a kind cluster is driven with."""

    kind: Path
    kubectl: Path
    version: str = f"v{versions.KIND}"


def ensure(progress: Progress) -> KindTools:
    """Return kind and kubectl, made or downloaded first where needed.

    Raises:
        MissingTool: the machine lacks a program that only its administrator can install.
        TestbedError: neither a download nor a build succeeded.
    """
    kind = _obtain(progress, _KIND_PROGRAM, official.kind_release(), versions.KIND)
    return KindTools(kind=kind, kubectl=binaries.ensure(progress).path("kubectl"))


def ensure_crictl(progress: Progress) -> Path:
    """Return crictl, which ``kind load`` and ``kind export logs`` call in every node.

    Raises:
        TestbedError: neither a download nor a build succeeded.
    """
    return _obtain(progress, _CRICTL, official.crictl_release(), versions.CRICTL)


def find() -> Path | None:
    """Return kind if the cache has it."""
    return _find(_KIND_PROGRAM)


def find_crictl() -> Path | None:
    """Return crictl if the cache has it."""
    return _find(_CRICTL)


def _find(program: build.Program) -> Path | None:
    folder = cache.find(_KIND, _key(program))
    return folder / program.name if folder else None


def _key(program: build.Program) -> str:
    module = versions.MODULES / program.module
    files = [file for file in module.rglob("*") if file.is_file()]
    return cache.key_of(repr(program), cache.key_of_files(module, files))


def _obtain(
    progress: Progress, program: build.Program, release: official.Release, version: str
) -> Path:
    def check(folder: Path) -> None:
        binaries.check_version(folder / program.name, ["--version"], version)

    def download(folder: Path, step: Step) -> None:
        official.download(folder, step, wanted=(release,))
        check(folder)

    def compile_(folder: Path, step: Step) -> None:
        scratch = Path(tempfile.mkdtemp(prefix=".go.", dir=folder.parent))
        try:
            build.build_programs([program], folder, scratch, step)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        check(folder)

    key = _key(program)
    folder = cache.find(_KIND, key)
    if folder is None and official.reachable(wanted=(release,)):
        try:
            folder = cache.obtain(_KIND, key, download, progress, f"download {program.name}")
        except TestbedError:
            # A release that is not there, or a line that broke: the sources give the same.
            folder = None
    if folder is None:
        folder = cache.obtain(_KIND, key, compile_, progress, f"build {program.name} (once)")
    return folder / program.name
