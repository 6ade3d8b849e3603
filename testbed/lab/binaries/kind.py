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
_TOGETHER = (_KIND_PROGRAM, _CRICTL)
_VERSIONS = {"kind": versions.KIND, "crictl": versions.CRICTL}


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
    kind = _obtain(progress, _KIND_PROGRAM, official.kind_release())
    return KindTools(kind=kind, kubectl=binaries.ensure(progress).path("kubectl"))


def ensure_crictl(progress: Progress) -> Path:
    """Return crictl, which ``kind load`` and ``kind export logs`` call in every node.

    Raises:
        TestbedError: neither a download nor a build succeeded.
    """
    return _obtain(progress, _CRICTL, official.crictl_release())


def find() -> Path | None:
    """Return kind if the cache has it."""
    return _find(_KIND_PROGRAM)


def find_crictl() -> Path | None:
    """Return crictl if the cache has it."""
    return _find(_CRICTL)


def _find(program: build.Program) -> Path | None:
    for key in (_key(program), _key(*_TOGETHER)):
        folder = cache.find(_KIND, key)
        if folder:
            return folder / program.name
    return None


def _key(*programs: build.Program) -> str:
    parts = []
    for program in programs:
        module = versions.MODULES / program.module
        files = [file for file in module.rglob("*") if file.is_file()]
        parts += [repr(program), cache.key_of_files(module, files)]
    return cache.key_of(*parts)


def _obtain(progress: Progress, program: build.Program, release: official.Release) -> Path:
    found = _find(program)
    if found:
        return found
    if official.reachable(wanted=(release,)):

        def download(folder: Path, step: Step) -> None:
            official.download(folder, step, wanted=(release,))
            _check(folder, program)

        try:
            folder = cache.obtain(
                _KIND, _key(program), download, progress, f"download {program.name}"
            )
        except TestbedError:
            pass  # a release that is not there, or a line that broke: the sources give the same
        else:
            return folder / program.name
    folder = cache.obtain(
        _KIND, _key(*_TOGETHER), _build, progress, "build kind and crictl (about 3 minutes, once)"
    )
    return folder / program.name


def _build(folder: Path, step: Step) -> None:
    """Build both: who cannot download one needs the other too, and they share Go's caches."""
    scratch = Path(tempfile.mkdtemp(prefix=".go.", dir=folder.parent))
    try:
        build.build_programs(_TOGETHER, folder, scratch, step)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for program in _TOGETHER:
        _check(folder, program)


def _check(folder: Path, program: build.Program) -> None:
    binaries.check_version(folder / program.name, ["--version"], _VERSIONS[program.name])
