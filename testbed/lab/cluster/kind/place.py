"""What an engine of our own is started from: its namespaces' plan and its configuration."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import cache
from testbed.lab.cluster.kind.packages import Programs
from testbed.lab.cluster.process import launch
from testbed.lab.cluster.process.plan import Plan, Service, Step, step, tmpfs

CGROUPS = Path("/sys/fs/cgroup")
#: Where sockets are whose names would be too long in a testbed's state.
SOCKETS = Path("/run")
#: Bytes that the kernel keeps for a socket's name, without the zero at its end (unix(7)).
_NAME_BYTES = 107
#: In the engine's own /run. Short: containerd's shims have sockets below TMPDIR.
_HOME = "/run/testbed"
_CONTAINERD = "/run/docker/containerd/containerd.sock"
#: `testbed logs containerd` is that of the nodes.
CONTAINERD_LOG = "docker-containerd.log"


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
        """Where Docker is reached: in the state folder, unless the name would be too long."""
        near = self.folder / "docker.sock"
        short = len(os.fsencode(near)) <= _NAME_BYTES
        return near if short else sockets_of(self.token) / near.name

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.programs.program}.log"

    @property
    def scratch(self) -> str:
        """A folder whose content ends with the namespaces."""
        return str(self.folder / "scratch")

    def seen(self) -> tuple[Path, ...]:
        """Return the folders that the engine must see where the host sees them."""
        return (self.folder.parent, self.data, cache.root(), *self.apart())

    def apart(self) -> tuple[Path, ...]:
        """Return the socket's folder where it is not in the state."""
        if self.programs.program != "docker" or self.socket.parent == self.folder:
            return ()
        return (self.socket.parent,)

    @property
    def cgroup(self) -> str:
        return cgroup_of(self.token)


def cgroup_of(token: str) -> str:
    """Return the group below which an engine's containers are, on the host."""
    return f"vgpu-testbed-{token}"


def sockets_of(token: str) -> Path:
    """Return the private folder of sockets that are not in an engine's state."""
    return SOCKETS / f"vgpu-testbed-{token}"


def write(place: Place) -> Path:
    """Write the programs of the namespaces and the configurations; return the plan's file."""
    for folder in (
        place.folder,
        place.log.parent,
        place.folder / "client",
        Path(place.scratch),
        place.data,
    ):
        folder.mkdir(parents=True, exist_ok=True)
    for folder in place.apart():
        folder.mkdir(mode=0o700)
    launch.copy_programs(place.folder)
    (place.folder / "front.conf").write_text(_front(place))
    # Podman takes no image without one, and images come from our own archives.
    (place.folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    if place.programs.program == "docker":
        (place.folder / "daemon.json").write_text(json.dumps(_daemon(place), indent=1))
        (place.folder / "containerd.toml").write_text(_containerd(place))
    else:
        write_podman(place)
    document = place.folder / "plan.json"
    document.write_text(plan(place).json())
    return document


def plan(place: Place) -> Plan:
    """Return what the engine's pid 1 does."""
    environment = {
        **place.programs.environment(),
        "HOME": _HOME,
        "LANG": "C.UTF-8",
        "TMPDIR": _HOME,
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
        below = Service(
            name="containerd",
            argv=("containerd", "--config", str(place.folder / "containerd.toml")),
            log=str(place.log.with_name(CONTAINERD_LOG)),
        )
        above = Service(
            name="dockerd", argv=argv, log=str(place.log), wait=(f"socket:{_CONTAINERD}",)
        )
        services = [below, above, *services]
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
        step("mkdir", "-p", f"{scratch}/cgroup", f"{scratch}/run"),
        *_overlay(scratch, "/etc"),
        # kind lends /lib/modules to its nodes: Docker makes it where it is lacking, Podman
        # refuses.
        *_overlay(scratch, str(Path("/lib").resolve())),
        step("mkdir", "-p", "/lib/modules"),
        *_podman_cache(place),
        step("mount", "-n", "--rbind", "/run", f"{scratch}/run"),
        tmpfs("/run"),
        step("mkdir", "-p", "/run/lock", _HOME),
        # Where state or cache lie below /run, they are seen there again.
        *(each for path in place.seen() for each in _back(scratch, path)),
        # /sys of the new network; what the kernel keeps of AppArmor is not seen there, so
        # that no profile is loaded into it.
        step("mount", "-n", "--rbind", str(CGROUPS), f"{scratch}/cgroup"),
        step("mount", "-n", "-t", "sysfs", "sysfs", "/sys"),
        step("mount", "-n", "--rbind", f"{scratch}/cgroup", str(CGROUPS)),
        step("sh", "-c", _weigh(place.cgroup)),
        # Settings of the kernel stay; those of the network are this namespace's own.
        step("mount", "-n", "--bind", "/proc/sys", "/proc/sys"),
        step("mount", "-n", "-o", "remount,bind,ro", "/proc/sys"),
        step("mount", "-n", "--bind", "/proc/sys/net", "/proc/sys/net"),
        step("mount", "-n", "-o", "remount,bind,rw", "/proc/sys/net"),
        step("mkdir", "-p", "/etc/vgpu-testbed", "/etc/containers"),
        step("cp", str(place.folder / "front.conf"), "/etc/vgpu-testbed/front.conf"),
        step("cp", str(place.folder / "policy.json"), "/etc/containers/policy.json"),
    ]


def _podman_cache(place: Place) -> list[Step]:
    """Podman keeps where layers came from in /var/lib/containers, wherever its images are."""
    top = "/var/lib"
    if place.programs.program != "podman" or any(each.is_relative_to(top) for each in place.seen()):
        return []
    return _overlay(place.scratch, top)


def _weigh(group: str) -> str:
    """Return the command that lets a whole cluster weigh as much as some twenty programs.

    Under cgroup v1 one group weighs as much as one task of the machine's root group, so beside
    a busy host pods would get next to nothing of the processors.
    """
    folder = f"{CGROUPS}/cpu/{group}"
    return f"! [ -d {CGROUPS}/cpu ] || (mkdir -p {folder} && echo 20480 >{folder}/cpu.shares)"


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
        "containerd": _CONTAINERD,
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


def _containerd(place: Place) -> str:
    """Return containerd's configuration (TOML): the one that dockerd starts has no setting."""
    return f"""\
version = 2
root = "{place.data}/containerd/daemon"
state = "/run/docker/containerd/daemon"
# opt makes folders in the machine's /opt; Docker asks for no pods
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.grpc.v1.cri"]
[grpc]
  address = "{_CONTAINERD}"
"""


def _front(place: Place) -> str:
    return f"runtime {place.runc}\ncgroups keep\noom-score clamp\n"


def write_podman(place: Place) -> None:
    """Write podman's configuration, and the program that calls it inside."""
    root = place.programs.root
    programs = place.programs.environment()
    conmon = [f"{name}={programs[name]}" for name in ("PATH", "LD_LIBRARY_PATH")]
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
# Podman hands on nothing else, and a small system has no GLib for it.
conmon_env_vars = {json.dumps(conmon)}
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
        "HOME": _HOME,
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
