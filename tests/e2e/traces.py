"""What a testbed could leave on a machine, listed before and after; others' work apart.

Testbeds of others come and go on the same machine while this looks, so what could be
theirs is told apart by id range, by path and by the identity of namespaces: a listing
holds what is in the machine's own tables and what is this testbed's.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path

from testbed.lab.cluster.process import identity, processes

SPACES = ("mnt", "net", "pid", "user", "uts", "ipc", "cgroup")
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
#: Where programs of the kind that a testbed runs put things when nothing holds them back.
FOLDERS = (
    *("/run", "/run/cdi", "/run/netns", "/run/containerd", "/var/lib", "/var/lib/cni"),
    *("/var/lib/kubelet", "/var/log", "/mnt", "/etc", "/etc/cni", "/opt", "/sys/fs/cgroup"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """A listing; two of them are equal when nothing was left.

    Attributes:
        processes: Of the testbed's ids, or at work in its owner's folders.
        mounts: The machine's own table, without what others mount below ``/tmp``.
        links: Network links of the machine's own namespace.
        nft: Its nftables rules, without counters.
        files: Below the owner's folders.
        names: In the folders of the system, and files of the testbed's ids in shared ones.
        sysctls: Settings that a kubelet changes where it may.
    """

    processes: tuple[str, ...]
    mounts: tuple[str, ...]
    links: tuple[str, ...]
    nft: str
    files: tuple[str, ...]
    names: tuple[str, ...]
    sysctls: tuple[str, ...]


def listing(name: str, home: Path, *, network: tuple[str, ...] = ()) -> Traces:
    """Return what there is now of a testbed and its owner's folders.

    Args:
        name: The testbed's.
        home: The folder that holds the owner's.
        network: Command that runs another in the network that is looked at; ours.
    """
    return Traces(
        processes=tuple(sorted(f"{each.pid} {' '.join(each.argv)}" for each in alive(name, home))),
        mounts=tuple(sorted(_mounts(home))),
        links=tuple(sorted(_links(network))),
        nft=_rules(network),
        files=tuple(sorted(str(path) for path in home.rglob("*"))),
        names=tuple(sorted(_names(name))),
        sysctls=tuple((Path("/proc/sys") / each).read_text() for each in SYSCTLS),
    )


def difference(before: Traces, after: Traces) -> str:
    """Return what is there now and was not, and the other way round; nothing if equal."""
    lines = []
    for field in fields(Traces):
        one, other = getattr(before, field.name), getattr(after, field.name)
        if one == other:
            continue
        if isinstance(one, str):
            one, other = one.splitlines(), other.splitlines()
        lines += [f"{field.name}: left {each}" for each in other if each not in one]
        lines += [f"{field.name}: gone {each}" for each in one if each not in other]
    return "\n".join(lines)


def alive(name: str, home: Path, *, but: Collection[int] = ()) -> list[processes.Process]:
    """Return the processes that run under a testbed's ids or in its owner's folders.

    Not zombies: when the machine's init takes them is its own affair.
    """
    ids, own, found = _ids(name), str(home).encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = path.stat().st_uid in ids or own in (path / "cmdline").read_bytes()
            if not ours:
                where = str((path / "cwd").readlink())
                # What the owner's commands start carries their environment.
                ours = where.startswith(str(home)) or own in (path / "environ").read_bytes()
            process = processes.read(int(path.name)) if ours else None
            if process is not None and process.pid not in (os.getpid(), *but):
                found.append(process)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """Namespaces of a testbed at one moment, and who was there then.

    The kernel gives their numbers again to others, so only who was there by then can
    hold these; whatever of the testbed came later is seen by ``alive``.
    """

    numbers: frozenset[str]
    there: frozenset[tuple[int, str]]


def spaces(name: str, home: Path) -> Spaces:
    """Return the namespaces that a testbed's processes are in and this process is not."""
    own = {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in SPACES}
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = (processes.read(pid) for pid in pids)
    there = frozenset((each.pid, each.started) for each in found if each is not None)
    numbers: set[str] = set()
    for each in alive(name, home):
        for kind in SPACES:
            with contextlib.suppress(OSError):
                numbers.add(str(Path(f"/proc/{each.pid}/ns/{kind}").readlink()))
    return Spaces(numbers=frozenset(numbers - own), there=there)


def held(spaces: Spaces) -> list[str]:
    """Return who still holds one of some namespaces: processes, descriptors, mounts."""
    found = []
    for pid, started in spaces.there:
        path, process = Path(f"/proc/{pid}"), processes.read(pid)
        if process is None or process.started != started:
            continue
        for each in (*(path / "ns" / kind for kind in SPACES), *_descriptors(path)):
            with contextlib.suppress(OSError):
                if (target := str(each.readlink())) in spaces.numbers:
                    found.append(f"{each} -> {target} of {' '.join(process.argv)}")
    # Bound to a name: a mount of the file system nsfs, whose root is the namespace.
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        bound = re.search(r" (\w+:\[\d+\]) ", line)
        if bound and bound[1] in spaces.numbers:
            found.append(line)
    return found


def _ids(name: str) -> range:
    if os.geteuid() != 0:
        return range(0)
    base = identity.choose(name).uid
    return range(base, base + identity.RANGE)


def _descriptors(process: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list((process / "fd").iterdir())
    return []


def _mounts(home: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if " /tmp/" not in line or str(home) in line]


def _links(network: tuple[str, ...]) -> list[str]:
    command = [*network, "ip", "-o", "link"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split(":")[1].strip() for line in shown.stdout.splitlines()]


def _rules(network: tuple[str, ...]) -> str:
    """Return the nftables rules; nothing where there is no nft or no right to ask."""
    try:
        command = [*network, "nft", "list", "ruleset"]
        shown = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return re.sub(r"counter packets \d+ bytes \d+", "counter", shown.stdout)


def _names(name: str) -> list[str]:
    found = [str(each) for top in FOLDERS if Path(top).is_dir() for each in Path(top).iterdir()]
    ids = _ids(name)
    for top in ("/tmp", "/dev/shm", "/var/tmp"):
        for each in Path(top).iterdir():
            with contextlib.suppress(OSError):
                if each.lstat().st_uid in ids:
                    found.append(str(each))
    return found
