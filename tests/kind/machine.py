"""What a kind cluster could change on a machine, as one JSON document.

    machine.py FOLDER...

Run as a program too, so that a test can look at a network and mounts of its own. Folders
named are the caller's, and are listed whole.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: Settings of the kernel that change by themselves: counts, clocks, random numbers.
_MOVING = (
    *("fs/dentry-state", "fs/file-nr", "fs/inode-nr", "fs/inode-state", "fs/aio-nr"),
    *("fs/dentry-negative", "fs/quota/", "kernel/random/", "kernel/pty/nr", "kernel/ns_last_pid"),
    *("kernel/tainted", "kernel/cad_pid", "net/netfilter/nf_conntrack_count", "kernel/perf_"),
    *("kernel/sched_", "debug/", "fs/binfmt_misc/", "vm/stat_refresh", "kernel/usermodehelper/"),
)
#: Programs of engines and nodes.
_PROGRAMS = frozenset(
    [
        *("dockerd", "containerd", "containerd-shim", "docker-proxy", "podman", "conmon"),
        *("netavark", "aardvark-dns", "kubelet", "kubeadm", "kube-apiserver", "etcd"),
    ]
)
#: Before an engine's token, which its processes name.
_SOCKETS = "vgpu-testbed-"
_FOLDERS = ("/run", "/var/lib", "/var/run", "/mnt", "/opt", "/etc", "/usr/lib", "/var/log")
Listing = dict[str, list[str]]


def listing(folders: list[Path]) -> Listing:
    """Return what there is now, by what it is."""
    return {
        "sysctls": _sysctls(),
        "mounts": _mounts(),
        "links": _said("ip", "-o", "link"),
        "addresses": _said("ip", "-o", "-4", "address"),
        "routes": _said("ip", "route", "show", "table", "all"),
        "nft": _said("nft", "--stateless", "list", "ruleset"),
        "iptables": [line for line in _said("iptables-save") if not line.startswith("#")],
        "modules": sorted(line.split()[0] for line in _text("/proc/modules").splitlines()),
        "etc": _etc(),
        "names": sorted(str(path) for top in _FOLDERS for path in _names(Path(top))),
        "groups": _groups(),
        "processes": _processes(folders),
        "files": sorted(str(path) for top in folders for path in top.rglob("*")),
    }


def difference(before: Listing, after: Listing) -> list[str]:
    """Return what came and what went, one line each."""
    lines = []
    for what, old in before.items():
        new = after[what]
        lines += [f"{what}: came {each}" for each in new if each not in old]
        if what != "groups":  # what others had left, somebody may remove
            lines += [f"{what}: went {each}" for each in old if each not in new]
    return lines


def _sysctls() -> list[str]:
    found = []
    top = Path("/proc/sys")
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        # A link of another testbed comes and goes with its own settings.
        if name.startswith(_MOVING) or "/conf/veth" in name or "/neigh/veth" in name:
            continue
        try:
            if path.is_file() and os.access(path, os.R_OK):
                found.append(f"{name} = {path.read_text(errors='replace').strip()}")
        except OSError:
            continue
    return found


def _mounts() -> list[str]:
    """Return the mounts of this namespace; their numbers are anybody's."""
    return sorted(
        " ".join(line.split()[3:6]) + line.partition(" - ")[2]
        for line in _text("/proc/self/mountinfo").splitlines()
    )


def _etc() -> list[str]:
    found = []
    for path in sorted(Path("/etc").rglob("*")):
        try:
            stat = path.lstat()
        except OSError:
            continue
        found.append(f"{path} {stat.st_mode:o} {stat.st_size} {stat.st_mtime_ns}")
    return found


def _below(top: Path) -> list[Path]:
    try:
        return sorted(top.iterdir())
    except OSError:
        return []


def _names(top: Path) -> list[Path]:
    """Return what is in a folder, but for sockets of testbeds that are at work."""
    sockets = {path for path in _below(top) if path.name.startswith(_SOCKETS)}
    at_work = " ".join(_command_lines()) if sockets else ""
    return [
        path
        for path in _below(top)
        if path not in sockets or path.name.removeprefix(_SOCKETS) not in at_work
    ]


def _command_lines() -> list[str]:
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [_text(path / "cmdline") for path in processes]


def _groups() -> list[str]:
    """Return the control groups of testbeds and engines that are left, in all hierarchies.

    One with a process in it is of somebody who is at work.
    """
    top = Path("/sys/fs/cgroup")
    patterns = [f"{depth}{name}" for depth in ("", "*/") for name in _GROUPS]
    found = {path for pattern in patterns for path in top.glob(pattern)}
    return sorted(str(path) for path in found if not _at_work(path))


def _at_work(group: Path) -> bool:
    return any(_text(path).strip() for path in [*group.rglob("cgroup.procs")])


_GROUPS = ("vgpu-testbed-*", "libpod*", "kubelet*", "kubepods*")


def _processes(folders: list[Path]) -> list[str]:
    """Return engines' and nodes' processes that belong to the caller's folders.

    Others may have clusters on the same machine: theirs are told apart by the folders that
    their command line, their program or their namespaces' first process name.
    """
    found, spaces = [], set()
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    for path in processes:
        words = _text(path / "cmdline").replace("\0", " ")
        if any(str(folder) in words for folder in folders):
            spaces.add(_link(path / "ns/pid"))
            found.append(f"{path.name} {words[:100]}")
    spaces -= {_link(Path("/proc/self/ns/pid")), ""}
    for path in processes:
        if _text(path / "comm").strip() in _PROGRAMS and _link(path / "ns/pid") in spaces:
            found.append(f"{path.name} {_text(path / 'comm').strip()}")
    own = {str(os.getpid()), str(os.getppid())}
    return sorted(line for line in set(found) if line.split()[0] not in own)


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _text(path: Path | str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _said(*argv: str) -> list[str]:
    """Return what a program says; nothing where it is not installed.

    One that cannot tell (a kernel without its tables) says why in a line, so that one that
    could before is a difference.

    Raises:
        RuntimeError: it does not end: what is there is not known then.
    """
    if shutil.which(argv[0]) is None:
        return []
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(argv)} does not end") from error
    if done.returncode:
        return [f"cannot be told: {' '.join(done.stderr.split())}"]
    return done.stdout.splitlines()


if __name__ == "__main__":
    print(json.dumps(listing([Path(each) for each in sys.argv[1:]])))
