"""What a kind cluster needs of this machine, each with the command that helps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from testbed.errors import InputError, TestbedError
from testbed.lab import cache
from testbed.lab.binaries import kind as tools
from testbed.lab.cluster.kind import choice, packages, toolkit
from testbed.lab.cluster.kind.gpu_host import ask
from testbed.lab.cluster.kind.toolkit import EngineFacts
from testbed.lab.doctor import Finding, free_inotify, sysctl
from testbed.lab.images import node

#: What image and volumes of two nodes were seen to take: 1.1 GB and 1.7 GB, images beside.
STORAGE_GIB = 5
#: inotify instances, counted on a cluster of this testbed's: the control plane's pods and
#: the engine, and each node (systemd, kubelet, containerd, kube-proxy, journals).
INOTIFY_CLUSTER, INOTIFY_NODE = 16, 15
_INOTIFY = "sudo sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288"
#: kubelet's, containerd's and pods' watches; kind's page of known issues has the number.
WATCHES = 65536


def engine_facts(program: str, timeout_s: float = 10.0) -> EngineFacts | InputError:
    """Return what an engine says of itself, or why it does not."""
    form = "{{json .}}" if program == "docker" else "json"
    said = ask([program, "info", "--format", form], timeout_s=timeout_s)
    try:
        read = toolkit.parse_docker_info if program == "docker" else toolkit.parse_podman_info
        return read(said.out or said.err)
    except InputError as error:
        return error


def findings(facts: EngineFacts | InputError | None) -> tuple[Finding, ...]:
    """Return what a kind cluster of two nodes needs.

    Args:
        facts: What the engine that is there says, or why it does not; None where none is.
    """
    told = facts if isinstance(facts, EngineFacts) else None
    return (
        _engine(facts),
        cgroups(told, _mounts()),
        _apparmor(),
        inotify(free_inotify(), sysctl("fs.inotify.max_user_watches")),
        _storage(told),
    )


def _engine(facts: EngineFacts | InputError | None) -> Finding:
    name = "container engine"
    try:
        chosen = choice.look()
    except TestbedError as error:
        hint = error.hint
        if isinstance(facts, InputError) and "permission denied" in facts.why:
            hint = "sudo usermod -aG docker $USER   (and log in anew)"
        return Finding(name=name, ok=False, detail=error.why or error.what, hint=hint)
    return Finding(name=name, ok=True, detail=chosen.why)


def cgroups(engine: EngineFacts | None, mounts: str) -> Finding:
    """Judge the machine's cgroups: version 1 works, and is on its way out."""
    kinds = {line.partition(" - ")[2].split()[0] for line in mounts.splitlines() if " - " in line}
    # Where both are mounted, controllers and engines are on version 1.
    version = engine.cgroups if engine and engine.cgroups else 1 if "cgroup" in kinds else 2
    if not kinds & {"cgroup", "cgroup2"}:
        return Finding(
            name="cgroups",
            ok=False,
            detail="none are mounted: kubelet cannot run",
            hint="mount -t cgroup2 none /sys/fs/cgroup, or --provider process, which needs none",
        )
    driver = f", driver {engine.cgroup_driver}" if engine and engine.cgroup_driver else ""
    detail = f"version {version}{driver}"
    if version == 1:
        detail += "; kubelet is told to accept it"
    return Finding(name="cgroups", ok=True, detail=detail)


def _apparmor() -> Finding:
    """Never a fault: nodes are privileged and unconfined, and make no user namespaces."""
    value = sysctl("kernel.apparmor_restrict_unprivileged_userns")
    detail = "does not concern kind's nodes"
    if value == "1":
        detail = "restricts users' namespaces (Ubuntu 23.10 and later); kind's nodes need none"
    return Finding(name="AppArmor", ok=True, detail=detail)


def inotify(free: int | None, watches: str | None) -> Finding:
    """Judge what is left of root's inotify instances for two nodes (kind #3317, #2586)."""
    needed = INOTIFY_CLUSTER + 2 * INOTIFY_NODE
    few = watches is not None and int(watches) < WATCHES
    ok = (free is None or free >= needed) and not few
    detail = f"{'any number' if free is None else free} free, two nodes use {needed}"
    detail += f"; {watches} watches" if few else ""
    return Finding(name="inotify instances", ok=ok, detail=detail, hint="" if ok else _INOTIFY)


def _storage(engine: EngineFacts | None) -> Finding:
    folder = Path(engine.storage) if engine and engine.storage else cache.root()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / (1 << 30)
    ok = free >= STORAGE_GIB
    return Finding(
        name=f"{STORAGE_GIB} GiB for nodes",
        ok=ok,
        detail=f"{free:.0f} GiB free at {folder}",
        hint="" if ok else f"{engine.name if engine else 'docker'} system prune --all --volumes",
    )


def installed() -> str:
    """Return the engine's program that is asked for or installed, empty where there is none."""
    asked = choice.asked_program()
    known = (asked,) if asked else ("docker", "podman")
    return next((each for each in known if shutil.which(each)), "")


def unmade(facts: EngineFacts | InputError | None) -> tuple[str, ...]:
    """Return what the first kind cluster makes or fetches here, once.

    Args:
        facts: As for ``findings``.
    """
    missing = []
    if tools.find() is None:
        missing.append("kind (up to 5 minutes, once)")
    if node.find() is None:
        missing.append("a node image unless one can be pulled (up to 5 minutes, once)")
    # Only root is given an own engine; to others the engine's finding says what to do.
    program = choice.asked_program() or "docker"
    own = os.geteuid() == 0 and not isinstance(facts, EngineFacts)
    if own and packages.cached(program) is None:
        missing.append(f"an own {program.title()} of Debian packages")
    return tuple(missing)


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
