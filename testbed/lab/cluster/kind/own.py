"""An engine of our own: in namespaces of its own, so that nothing of the host changes.

Its network (forwarding, bridges, packet filter), its mounts and its processes are seen
by nobody else and go with its pid 1, which is the process cluster's supervisor. Docker
is reached by a socket in the state folder (or in one of its own, where that would have too
long a name); Podman has no daemon and is called inside.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.errors import ClusterError
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.place import (
    CGROUPS,
    CONTAINERD_LOG,
    Place,
    cgroup_of,
    sockets_of,
    write,
)
from testbed.lab.cluster.process import launch, processes
from testbed.lab.cluster.process.watch import tail

_START_S = 30.0
_POLL_S = 0.05


def engine(place: Place) -> Engine:
    """Return the engine that runs at a place."""
    if place.programs.program == "docker":
        libraries = place.programs.environment()
        return Engine(
            program="docker",
            own=True,
            environment={
                "DOCKER_HOST": f"unix://{place.socket}",
                # Contexts and credentials of the user have nothing to do with this one.
                "DOCKER_CONFIG": str(place.folder / "client"),
                "PATH": f"{place.programs.path()}:{os.environ.get('PATH', '')}",
                "DOCKER_CONTEXT": "default",
                "DOCKER_TLS_VERIFY": "",
                "XTABLES_LIBDIR": libraries["XTABLES_LIBDIR"],
            },
        )
    return Engine(
        program="podman",
        own=True,
        environment={"PATH": f"{place.folder / 'bin'}:{os.environ.get('PATH', '')}"},
    )


def start(place: Place, listening: socket.socket, tell: Callable[[str], None]) -> Engine:
    """Start the engine and wait until it answers.

    The caller has written down the token before: whatever happens here, its processes
    can be found.

    Args:
        place: What it is made of.
        listening: A socket on 127.0.0.1 whose connections go to the same port inside.
        tell: Is told what is waited for.

    Raises:
        ClusterError: it does not come up.
    """
    document = write(place)
    init = [launch.PYTHON, "-IS", str(place.folder / "init.py"), "--cluster", place.token]
    flags = ["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
    log = place.folder / "logs" / "engine.log"
    with log.open("ab") as output:
        subprocess.run(
            [
                *("setsid", "--fork", "unshare", *flags, "--mount-proc"),
                *(*init, str(document), "--listen-fd", str(listening.fileno())),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(listening.fileno(),),
            env={"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"},
            check=True,
            timeout=_START_S,
        )
    found = engine(place)
    _wait(place, found, tell)
    return found


def _found_init(place: Place) -> None:
    """Write down which process is pid 1, for what enters its namespaces."""
    found = init_of(place.token)
    if found is not None:
        (place.folder / "pid").write_text(f"{found.pid}\n")


def init_of(token: str) -> processes.Process | None:
    """Return the pid 1 of an engine's namespaces."""
    found = [each for each in processes.members(token) if each.is_pid1]
    return min(found, key=lambda each: int(each.started), default=None)


def stop(token: str, data: Path | None) -> None:
    """End an engine with all it runs, and remove its images, groups and sockets.

    Raises:
        ClusterError: a process does not end.
    """
    members = sorted(processes.members(token), key=lambda each: not each.is_pid1)
    left = processes.end(members)
    if left:
        raise ClusterError(
            "processes of the engine do not end",
            why=", ".join(f"{each.pid} {' '.join(each.argv)[:80]}" for each in left),
            hint="run `testbed down` again; a process in the kernel may need a moment",
        )
    remove_groups(cgroup_of(token))
    shutil.rmtree(sockets_of(token), ignore_errors=True)
    if data is not None and data.exists():
        shutil.rmtree(data, ignore_errors=True)
        if data.exists():
            raise ClusterError(f"{data} cannot be removed", hint=f"rm -rf {data}")


def remove_groups(name: str, top: Path = CGROUPS, *, deadline_s: float = 5.0) -> None:
    """Remove the control groups of an engine's containers, in all hierarchies.

    A group can be removed once its last process is gone, which the kernel may tell late.
    """
    until = time.monotonic() + deadline_s
    while True:
        busy = False
        for found in [*top.glob(name), *top.glob(f"*/{name}")]:
            if found.is_symlink():  # cpu and cpuacct may be two names of one
                continue
            for where, _, _ in os.walk(found, topdown=False):
                try:
                    Path(where).rmdir()
                except OSError:
                    busy = True
        if not busy or time.monotonic() > until:
            return
        time.sleep(_POLL_S)


# --- waiting ---------------------------------------------------------------------------


def _wait(place: Place, found: Engine, tell: Callable[[str], None]) -> None:
    until = time.monotonic() + _START_S
    tell(f"{place.programs.program} of its own")
    while not _ready(place) or found.answers() is None:
        failed = _failure(place)
        if failed or time.monotonic() > until:
            # Below dockerd is containerd: why that one ends is not in Docker's log.
            names = (CONTAINERD_LOG, place.log.name, "engine.log")
            lines = [line for name in names for line in tail(place.log.with_name(name))]
            raise ClusterError(
                f"{place.programs.program} does not come up",
                why="\n  ".join([failed or f"no answer within {_START_S:.0f} s", *lines]),
                artifacts=place.log.parent,
            )
        time.sleep(_POLL_S)


def _ready(place: Place) -> bool:
    """Tell whether the namespaces are laid out; Podman needs to know which they are."""
    report = _report(place)
    if report is None or report["stage"] != "running":
        return False
    if not (place.folder / "pid").exists():
        _found_init(place)
    return True


def _report(place: Place) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((place.folder / "status.json").read_text())
    except (OSError, ValueError):
        return None
    return found


def _failure(place: Place) -> str:
    """Return why it will not come up, empty where it may."""
    report = _report(place)
    if report is None:
        return ""
    if report["stage"] == "failed":
        return str(report["error"])
    for name, service in report["services"].items():
        if service["failures"] >= 2:
            return f"{name} ended with {service['exit']}"
    return ""


def outer_pid(token: str, pid: int) -> int:
    """Return the host's pid of a process of an engine's namespaces; 0 where it is gone."""
    init = init_of(token)
    if init is None:
        return 0
    try:
        space = Path(f"/proc/{init.pid}/ns/pid").stat().st_ino
    except OSError:
        return 0
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        try:
            words = _line_of(each / "status", "NSpid:")
            # A node has a namespace of its own below: the host's pid comes first, the
            # engine's second.
            if len(words) > 2 and words[1] == str(pid) and _below(each, space):
                return int(each.name)
        except OSError:
            continue
    return 0


def _line_of(path: Path, key: str) -> list[str]:
    for line in path.read_text().splitlines():
        if line.startswith(key):
            return line.split()[1:]
    return []


def _below(process: Path, space: int) -> bool:
    """Tell whether a process's parents lead to a namespace: pids repeat between them."""
    while process.name not in ("0", "1"):
        if (process / "ns/pid").stat().st_ino == space:
            return True
        parent = _line_of(process / "status", "PPid:")
        process = Path("/proc") / (parent[0] if parent else "0")
    return False
