"""An engine of our own: in namespaces of its own, so that nothing of the host changes.

Its network (forwarding, bridges, packet filter), its mounts and its processes are seen
by nobody else and go with its pid 1, which is the process cluster's supervisor. Docker
is reached by a socket in the state folder; Podman has no daemon and is called inside.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ClusterError
from testbed.lab import cache
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.packages import Programs
from testbed.lab.cluster.process import launch, processes
from testbed.lab.cluster.process.plan import Plan, Service, Step, step, tmpfs
from testbed.lab.cluster.process.watch import tail

_START_S = 30.0
_POLL_S = 0.05
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one start of an engine is made of."""

    #: Its folder in the state of the cluster.
    folder: Path
    #: Marks its processes.
    token: str
    #: Images and containers: on a file system that overlayfs can lie upon.
    data: Path
    programs: Programs
    #: The OCI front, and the runtime behind it.
    front: Path
    runc: Path
    #: API server's port, the same on the host and inside.
    port: int

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.programs.program}.log"

    @property
    def scratch(self) -> str:
        """A folder whose content ends with the namespaces."""
        return str(self.folder / "scratch")

    def seen(self) -> tuple[Path, ...]:
        """Return the folders that the engine must see where the host sees them."""
        return (self.folder.parent, self.data, cache.root())

    @property
    def cgroup(self) -> str:
        return cgroup_of(self.token)


def cgroup_of(token: str) -> str:
    """Return the group below which an engine's containers are, on the host."""
    return f"vgpu-testbed-{token}"


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
    for folder in (
        place.folder,
        place.log.parent,
        place.folder / "client",
        Path(place.scratch),
        place.data,
    ):
        folder.mkdir(parents=True, exist_ok=True)
    launch.copy_programs(place.folder)
    (place.folder / "front.conf").write_text(_front(place))
    # Podman takes no image without one, and images come from our own archives.
    (place.folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    if place.programs.program == "docker":
        (place.folder / "daemon.json").write_text(json.dumps(_daemon(place), indent=1))
    else:
        _podman_files(place)
    document = place.folder / "plan.json"
    document.write_text(plan(place).json())
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
    """End an engine with all it runs, and remove its images and groups.

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
    if data is not None and data.exists():
        shutil.rmtree(data, ignore_errors=True)
        if data.exists():
            raise ClusterError(f"{data} cannot be removed", hint=f"rm -rf {data}")


def remove_groups(name: str, top: Path = _CGROUPS, *, deadline_s: float = 5.0) -> None:
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


# --- what it is started with -----------------------------------------------------------


def plan(place: Place) -> Plan:
    """Return what the engine's pid 1 does."""
    environment = {
        **place.programs.environment(),
        "HOME": f"{place.scratch}/home",
        "LANG": "C.UTF-8",
        "TMPDIR": f"{place.scratch}/home",
    }
    relay = (
        *(launch.PYTHON, "-IS", str(place.folder / "relay.py")),
        *("{listen}", "127.0.0.1", str(place.port)),
    )
    services = [
        Service(name="relay", argv=relay, log=str(place.log.with_name("relay.log")), listen=True)
    ]
    if place.programs.program == "docker":
        argv = ("dockerd", "--config-file", str(place.folder / "daemon.json"))
        services.insert(0, Service(name="dockerd", argv=argv, log=str(place.log)))
    return Plan(
        status=str(place.folder / "status.json"),
        hostname="testbed",
        environment=environment,
        setup=(*_file_systems(place), step("ip", "link", "set", "lo", "up")),
        services=tuple(services),
    )


def _file_systems(place: Place) -> list[Step]:
    """Everything that an engine would write outside its data is a file system of ours."""
    scratch = place.scratch
    return [
        tmpfs(scratch),
        step("mkdir", "-p", f"{scratch}/home", f"{scratch}/cgroup", f"{scratch}/run"),
        *_overlay(scratch, "/etc"),
        # kind lends /lib/modules to its nodes, and engines make a folder that is lacking.
        *_overlay(scratch, "/usr/lib"),
        step("mount", "-n", "--rbind", "/run", f"{scratch}/run"),
        tmpfs("/run"),
        step("mkdir", "-p", "/run/lock"),
        # Where state or cache lie below /run, they are seen there again.
        *(each for path in place.seen() for each in _back(scratch, path)),
        # /sys of the new network; what the kernel keeps of AppArmor is not seen there, so
        # that no profile is loaded into it.
        step("mount", "-n", "--rbind", str(_CGROUPS), f"{scratch}/cgroup"),
        step("mount", "-n", "-t", "sysfs", "sysfs", "/sys"),
        step("mount", "-n", "--rbind", f"{scratch}/cgroup", str(_CGROUPS)),
        # Settings of the kernel stay; those of the network are this namespace's own.
        step("mount", "-n", "--bind", "/proc/sys", "/proc/sys"),
        step("mount", "-n", "-o", "remount,bind,ro", "/proc/sys"),
        step("mount", "-n", "--bind", "/proc/sys/net", "/proc/sys/net"),
        step("mount", "-n", "-o", "remount,bind,rw", "/proc/sys/net"),
        step("mkdir", "-p", "/etc/vgpu-testbed", "/etc/containers"),
        step("cp", str(place.folder / "front.conf"), "/etc/vgpu-testbed/front.conf"),
        step("cp", str(place.folder / "policy.json"), "/etc/containers/policy.json"),
    ]


def _back(scratch: str, path: Path) -> list[Step]:
    for top in ("/run", "/var/run"):
        if path.is_relative_to(top):
            kept = f"{scratch}/run/{path.relative_to(top)}"
            seen = f"/run/{path.relative_to(top)}"
            return [step("mkdir", "-p", seen), step("mount", "-n", "--rbind", kept, seen)]
    return []


def _overlay(scratch: str, folder: str) -> list[Step]:
    own = f"{scratch}/over{folder.replace('/', '-')}"
    options = f"lowerdir={folder},upperdir={own}/upper,workdir={own}/work"
    return [
        step("mkdir", "-p", f"{own}/upper", f"{own}/work"),
        step("mount", "-n", "-t", "overlay", "-o", options, "overlay", folder),
    ]


def _daemon(place: Place) -> dict[str, object]:
    """Return the configuration of dockerd."""
    root = place.programs.root
    return {
        "data-root": str(place.data),
        "exec-root": "/run/docker",
        "pidfile": "/run/docker.pid",
        "hosts": [f"unix://{place.socket}"],
        "storage-driver": "overlay2",
        "cgroup-parent": f"/{place.cgroup}",
        # systemd, where there is one, is the host's.
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "default-runtime": "vgpu",
        "runtimes": {"vgpu": {"path": str(place.front)}},
        "userland-proxy-path": str(root / "usr/sbin/docker-proxy"),
        "features": {"buildkit": False},
    }


def _front(place: Place) -> str:
    return f"runtime {place.runc}\ncgroups keep\noom-score clamp\n"


def _podman_files(place: Place) -> None:
    """Write podman's configuration, and the program that calls it inside."""
    root = place.programs.root
    helpers = [str(root / each) for each in ("usr/lib/podman", "usr/bin", "usr/sbin")]
    (place.folder / "containers.conf").write_text(
        f"""\
[containers]
cgroup_conf = []
[engine]
runtime = "vgpu"
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_path = ["{root}/usr/bin/conmon"]
helper_binaries_dir = {json.dumps(helpers)}
tmp_dir = "/run/libpod"
[engine.runtimes]
vgpu = ["{place.front}"]
[network]
network_backend = "netavark"
network_config_dir = "{place.data}/networks"
"""
    )
    (place.folder / "storage.conf").write_text(
        f"""\
[storage]
driver = "overlay"
graphroot = "{place.data}/storage"
runroot = "/run/containers"
"""
    )
    environment = {
        **place.programs.environment(),
        "HOME": f"{place.scratch}/home",
        "LANG": "C.UTF-8",
        "CONTAINERS_CONF": str(place.folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(place.folder / "storage.conf"),
    }
    words = " ".join(shlex.quote(f"{key}={value}") for key, value in environment.items())
    program = place.folder / "bin" / "podman"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"""\
#!/bin/sh
# Calls podman in the namespaces of the testbed's own engine.
read -r pid <{shlex.quote(str(place.folder / "pid"))} &&
case $(tr '\\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") in
{launch.PYTHON}*" --cluster {place.token} "*)
    case "$1" in run)
        shift
        set -- run --cgroup-parent=/{place.cgroup} "$@"
        ;;
    esac
    exec nsenter -t "$pid" --mount --net --pid --uts --ipc -- \\
        env -i {words} {shlex.quote(str(root / "usr/bin/podman"))} "$@"
    ;;
esac
echo "the engine of this testbed does not run" >&2
exit 125
"""
    )
    program.chmod(0o755)


# --- waiting ---------------------------------------------------------------------------


def _wait(place: Place, found: Engine, tell: Callable[[str], None]) -> None:
    until = time.monotonic() + _START_S
    tell(f"{place.programs.program} of its own")
    while not _ready(place) or found.answers() is None:
        failed = _failure(place)
        if failed or time.monotonic() > until:
            logs: Sequence[Path] = (place.log, place.folder / "logs" / "engine.log")
            lines = [line for log in logs for line in tail(log)]
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
