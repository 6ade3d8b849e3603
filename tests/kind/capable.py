"""Whether this machine can run an engine of our own: prints in one line what it lacks.

    capable.py

Nothing printed: nothing lacks. Each thing is tried as an engine needs it, and gone again
afterwards. What can be installed or mended by the testbed itself is no lack.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from testbed.lab import cache
from testbed.lab.cluster.kind import packages

CGROUPS = Path("/sys/fs/cgroup")
#: Hierarchies of cgroup v1 without which runc starts no container with limits.
_V1 = ("cpu", "cpuset", "devices", "freezer", "memory", "pids")
_NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
_OVERLAY = "mkdir -p l u w m && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m"
_LINKS = (
    "ip link add name probe0 type bridge && ip link add name probe1 type veth peer name probe2"
    " && ip link set dev probe1 master probe0"
)
_NAT = (
    "nft add table ip t && nft add chain ip t c '{ type nat hook postrouting priority 100; }'"
    " && nft add rule ip t c masquerade"
)
_SECONDS = 60.0


def lacking() -> str:
    """Return what this machine lacks, empty where it lacks nothing."""
    return next(_lacks(), "")


def _lacks() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "an engine of our own needs root"
    for name in packages.PACKAGES:
        if not packages.possible() and packages.cached(name) is None:
            yield f"there are no Debian packages to take {name} from"
    if shutil.which("unshare") is None:
        yield "there is no unshare (util-linux)"
    with _folder() as place:
        if why := _tried("true", place):
            yield f"root may not make namespaces here: {why}"
        if why := _tried(_OVERLAY, place):
            yield f"overlayfs cannot be mounted in {place.parent}: {why}"
        # Programs that are missing come with the first cluster.
        if shutil.which("ip") and (why := _tried(_LINKS, place)):
            yield f"bridges and veth links cannot be made here: {why}"
        if shutil.which("nft") and (why := _tried(_NAT, place)):
            yield f"nftables cannot translate addresses here: {why}"
    if why := _groups():
        yield why


def _groups() -> str:
    """Return why control groups cannot be made, empty where they can."""
    unified = (CGROUPS / "cgroup.controllers").exists()
    for top in (CGROUPS,) if unified else [CGROUPS / name for name in _V1]:
        if not (top / "cgroup.procs").exists():
            return f"there is no control group hierarchy {top}"
        probe = top / f"vgpu-testbed-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"control groups cannot be made in {top}: {error.strerror}"
    return ""


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Give a folder where images would lie."""
    cache.root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=cache.root()) as name:
        yield Path(name)


def _tried(script: str, place: Path) -> str:
    """Run a script in namespaces of its own; return why it fails, empty where it does not."""
    try:
        done = subprocess.run(
            [*_NAMESPACES, "sh", "-c", script],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
    return said if done.returncode else ""


if __name__ == "__main__":
    print(lacking(), end="")
