"""Which ids the cluster runs with, and whether this machine lets it.

kubelet never runs as root of the initial user namespace: there it changes kernel
settings of the machine. Root maps a whole range to high ids that nobody uses, an
ordinary user its subordinate range where it has one, else its own id alone.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import ClusterError, MissingTool
from testbed.lab.binaries.tools import locate

RANGE = 65536
#: systemd's table of ids calls everything from here to 2**31 unused.
_HIGH = 1_879_048_192
_SLOTS = 4095


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The id map of a cluster's user namespace."""

    #: uid and gid on the host of the namespace's root
    uid: int
    gid: int
    #: first id of the range that maps 1 and up, and how many; 0 where only root is mapped
    sub_uid: int = 0
    sub_gid: int = 0
    count: int = 0
    #: root of the host: mounts first, files given to the range
    privileged: bool = False

    @property
    def id_range(self) -> bool:
        """Whether pods may run as other users than 0."""
        return self.count > 0

    def map_lines(self, *, group: bool) -> list[tuple[int, int, int]]:
        """Return (inside, outside, count) lines of uid_map or gid_map."""
        first = self.gid if group else self.uid
        lines = [(0, first, 1)]
        if self.count:
            sub = self.sub_gid if group else self.sub_uid
            lines.append((1, sub, self.count))
        if self.privileged:  # one contiguous range
            return [(0, first, self.count + 1)]
        return lines

    def write_maps(self, pid: int) -> None:
        """Give the user namespace of a process its ids.

        Raises:
            ClusterError: the kernel or the helper programs refuse.
        """
        try:
            if self.count and not self.privileged:
                for tool, group in (("newuidmap", False), ("newgidmap", True)):
                    numbers = [str(n) for line in self.map_lines(group=group) for n in line]
                    subprocess.run(
                        [tool, str(pid), *numbers], check=True, capture_output=True, text=True
                    )
                return
            process = Path("/proc") / str(pid)
            if not self.privileged:  # without the right to setgroups it must be given up
                (process / "setgroups").write_text("deny")
            for file, group in (("uid_map", False), ("gid_map", True)):
                lines = self.map_lines(group=group)
                (process / file).write_text("".join(f"{a} {b} {c}\n" for a, b, c in lines))
        except subprocess.CalledProcessError as error:
            raise ClusterError(
                "the ids of the cluster cannot be mapped", why=error.stderr.strip()
            ) from error
        except OSError as error:
            raise ClusterError("the ids of the cluster cannot be mapped", why=str(error)) from error


def choose(name: str) -> Identity:
    """Return the identity for a cluster that this user starts."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and _all_ids_mapped():
        base = _free_base(name)
        return Identity(
            uid=base,
            gid=base,
            sub_uid=base + 1,
            sub_gid=base + 1,
            count=RANGE - 1,
            privileged=True,
        )
    sub_uid, sub_gid = _subordinate("/etc/subuid", uid), _subordinate("/etc/subgid", uid)
    if sub_uid and sub_gid and shutil.which("newuidmap") and shutil.which("newgidmap"):
        count = min(sub_uid[1], sub_gid[1], RANGE - 1)
        return Identity(uid=uid, gid=gid, sub_uid=sub_uid[0], sub_gid=sub_gid[0], count=count)
    return Identity(uid=uid, gid=gid)


def preflight() -> None:
    """Check that namespaces can be made here.

    Raises:
        MissingTool: with the one command that helps.
    """
    if not locate("unshare"):
        return  # whoever gathers the programs says so
    user = ["--user"] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    rest = [] if os.geteuid() == 0 else ["--mount", "--net", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        ["unshare", *user, *rest, "true"], capture_output=True, text=True, timeout=20
    )
    if done.returncode:
        hint = _namespace_hint(_sysctl)
        raise MissingTool(
            "this machine does not let us make user namespaces",
            why=done.stderr.strip(),
            hint=hint,
        )


def _namespace_hint(sysctl: Callable[[str], str | None]) -> str:
    """Return the one command that lets users make namespaces."""
    if sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if sysctl("kernel.unprivileged_userns_clone") == "0":
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if sysctl("user.max_user_namespaces") == "0":
        return "sudo sysctl -w user.max_user_namespaces=15000"
    return (
        "inside a container, start it with `--security-opt seccomp=unconfined"
        " --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
    )


def _sysctl(key: str) -> str | None:
    try:
        return (Path("/proc/sys") / key.replace(".", "/")).read_text().strip()
    except OSError:
        return None


def _all_ids_mapped() -> bool:
    """Tell whether this is the initial user namespace, or one that maps all it has."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def _free_base(name: str) -> int:
    """Return the first id of a range that no subordinate range and no user has."""
    taken = [each for file in ("/etc/subuid", "/etc/subgid") for each in _ranges(file)]
    users = [entry.pw_uid for entry in pwd.getpwall()]
    first = zlib.crc32(name.encode()) % _SLOTS
    for step in range(_SLOTS):
        base = _HIGH + (first + step) % _SLOTS * RANGE
        crossed = any(start < base + RANGE and base < start + n for _, start, n in taken)
        if not crossed and not any(base <= uid < base + RANGE for uid in users):
            return base
    raise ClusterError("no range of ids is free", why="/etc/subuid and /etc/subgid hand out all")


def _subordinate(file: str, uid: int) -> tuple[int, int] | None:
    """Return the first range that a user was given, as (start, count)."""
    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:  # newuidmap serves nobody without a passwd entry
        return None
    for owner, start, count in _ranges(file):
        if owner in names and count >= 1000:
            return start, count
    return None


def _ranges(file: str) -> list[tuple[str, int, int]]:
    """Return the (owner, start, count) lines of a file of subordinate ids."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        owner, _, numbers = line.partition(":")
        start, _, count = numbers.partition(":")
        if start.isdigit() and count.isdigit():
            found.append((owner, int(start), int(count)))
    return found
