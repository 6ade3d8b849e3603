"""Which engine a kind cluster runs in, and whether ``auto`` means kind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ClusterError, InputError, MissingTool, known_hint
from testbed.lab.cluster.kind import packages
from testbed.lab.cluster.kind.engine import PROGRAMS, VARIABLE, Engine, refuse_rootless, rootless

#: ``own``: always an engine of our own; ``there``: only one that is there already.
OWN_VARIABLE = "VGPU_TESTBED_ENGINE"
_WAYS = ("own", "there")
#: Bit of the capability without which a privileged container cannot be made as asked.
_SYS_RESOURCE = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An engine, or the program of which one is to be started."""

    program: str
    #: The engine that is there; None where an own one is to be started.
    engine: Engine | None
    #: One line for people: which, and why.
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the choice depends on."""

    #: What ``info`` of a program's engine says, None where none answers.
    info: Callable[[str], Mapping[str, Any] | None]
    root: bool
    #: Programs that are installed.
    installed: frozenset[str]
    #: Whether Debian packages can be had.
    fetchable: bool
    #: Whether privileged containers can be given all that engines give them.
    capable: bool


def look(environ: Mapping[str, str] | None = None) -> Choice:
    """Choose by this machine and the environment.

    Raises:
        InputError: a variable names no engine or no way.
        MissingTool, ClusterError: there is no engine that would do.
    """
    environ = os.environ if environ is None else environ
    machine = Machine(
        info=lambda program: Engine(program=program).answers(),
        root=os.geteuid() == 0,
        installed=frozenset(each for each in (*PROGRAMS, "dockerd") if shutil.which(each)),
        fetchable=packages.possible() or any(packages.cached(each) for each in PROGRAMS),
        capable=capable(Path("/proc/self/status").read_text()),
    )
    return choose(environ, machine)


def choose(environ: Mapping[str, str], machine: Machine) -> Choice:
    """Choose an engine: one that is there if it can start nodes, else one of our own.

    Args:
        environ: ``KIND_EXPERIMENTAL_PROVIDER`` names the program as for kind itself,
            ``VGPU_TESTBED_ENGINE`` says ``own`` or ``there``.
        machine: What there is.

    Raises:
        InputError, MissingTool, ClusterError.
    """
    asked, way = _asked(environ)
    if way != "own":
        found, why_not = _there(asked, way, machine, environ)
        if found is not None:
            return found
    else:
        why_not = f"{OWN_VARIABLE}=own"
    program = asked or "docker"
    start = f"start {program.capitalize()}"
    if "DOCKER_HOST" in why_not:
        start = "unset DOCKER_HOST"
    if way == "there":
        raise ClusterError(
            "no container engine can be used",
            why=why_not,
            hint=f"{start}, or leave {OWN_VARIABLE} out so that an own engine is started",
        )
    if not machine.root:
        if "no Docker answers" in why_not:
            start += " (one that runs answers its group: sudo usermod -aG docker $USER)"
        raise ClusterError(
            "no container engine can be used",
            why=f"{why_not}, and only root can start one",
            hint=f"{start}, run as root, or use --provider process, which needs neither",
        )
    if not machine.fetchable and program not in machine.installed:
        raise MissingTool(
            "no container engine can be used",
            why=f"{why_not}, and there are no Debian packages to take one from",
            hint=f"install {program}, or use --provider process",
        )
    return Choice(
        program=program,
        engine=None,
        why=f"an own {program.capitalize()} in namespaces of its own: {why_not}",
    )


def asked_program(environ: Mapping[str, str] | None = None) -> str:
    """Return the engine that the environment names, empty where it names none.

    Raises:
        InputError: a variable names no engine or no way.
    """
    return _asked(os.environ if environ is None else environ)[0]


def _asked(environ: Mapping[str, str]) -> tuple[str, str]:
    asked, way = environ.get(VARIABLE, ""), environ.get(OWN_VARIABLE, "")
    if asked and asked not in PROGRAMS:
        raise InputError(
            f"{VARIABLE}={asked!r} is no engine of the testbed's",
            hint=known_hint(asked, PROGRAMS),
        )
    if way and way not in _WAYS:
        raise InputError(f"{OWN_VARIABLE}={way!r} is not known", hint=known_hint(way, _WAYS))
    return asked, way


def _there(
    asked: str, way: str, machine: Machine, environ: Mapping[str, str]
) -> tuple[Choice | None, str]:
    """Return the engine that is there, or why none will do."""
    elsewhere = environ.get("DOCKER_HOST", "").startswith(("tcp://", "ssh://"))
    # Podman has no daemon of its own: called on the host it would change its forwarding.
    if asked == "podman" and way != "there" and machine.root:
        return None, "Podman on the host itself would change its network"
    reasons = []
    for program in (asked,) if asked else PROGRAMS[:1]:
        if program == "docker" and elsewhere:
            reasons.append("DOCKER_HOST is another machine, whose nodes would not see this one")
            continue
        info = machine.info(program) if program in machine.installed else None
        if info is None:
            reasons.append(f"no {program.capitalize()} answers")
        elif rootless(info):
            if way == "there" or not machine.root:
                raise refuse_rootless(program)
            reasons.append(f"{program.capitalize()} runs rootless")
        elif not machine.capable and not _has_front(info):
            reasons.append(
                f"{program.capitalize()} cannot start privileged containers on this host, which"
                " lacks the capability SYS_RESOURCE, without vgpu-oci-front as its runtime"
            )
        else:
            found = Engine.there(program, environ)
            return Choice(program=program, engine=found, why=_named(info)), ""
    return None, " and ".join(reasons)


def _named(info: Mapping[str, Any]) -> str:
    version = info.get("ServerVersion") or (info.get("version") or {}).get("Version") or ""
    return f"the engine that is there{f' (version {version})' if version else ''}"


def _has_front(info: Mapping[str, Any]) -> bool:
    """Tell whether an engine's default runtime is the OCI front."""
    default = info.get("DefaultRuntime", "")
    runtime = (info.get("Runtimes") or {}).get(default) or {}
    path = runtime.get("path") or runtime.get("Path") or ""
    if not path:
        path = ((info.get("host") or {}).get("ociRuntime") or {}).get("path") or ""
    return str(path).endswith("vgpu-oci-front")


def capable(status: str) -> bool:
    """Tell from /proc/self/status whether SYS_RESOURCE is in the bounding set."""
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> _SYS_RESOURCE & 1)
    return True
