"""What this machine lacks, each with the one command that helps."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.lab import binaries, cache

#: Free space that downloads and builds need at their peak, GiB.
DISK_GIB = 12
MEMORY_GIB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One need, whether it is met, and what to do if not."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def diagnose() -> tuple[Finding, ...]:
    """Look at the machine; change nothing."""
    return (_machine(), _python(), _user_namespaces(), _disk(), _memory(), _tools())


def _machine() -> Finding:
    found = f"{platform.system()} {platform.machine()}"
    return Finding(
        name="Linux x86-64",
        ok=found == "Linux x86_64",
        detail=found,
        hint="" if found == "Linux x86_64" else "use a Linux x86-64 machine",
    )


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding(
        name="Python 3.11",
        ok=ok,
        detail=platform.python_version(),
        hint="" if ok else "make setup PYTHON=python3.11",
    )


def _user_namespaces() -> Finding:
    """Try one: sysctls, AppArmor and containers block them in too many ways to list."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return Finding(name="user namespaces", ok=False, detail="no unshare", hint=_debian())
    done = subprocess.run(
        [unshare, "--user", "--map-root-user", "--mount", "--net", "true"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    if done.returncode == 0:
        return Finding(name="user namespaces", ok=True, detail="allowed")
    return Finding(
        name="user namespaces", ok=False, detail=done.stderr.strip(), hint=_allow_user_namespaces()
    )


def _allow_user_namespaces() -> str:
    apparmor = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if apparmor.exists() and apparmor.read_text().strip() == "1":
        return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    debian = Path("/proc/sys/kernel/unprivileged_userns_clone")
    if debian.exists() and debian.read_text().strip() == "0":
        return "sudo sysctl kernel.unprivileged_userns_clone=1"
    return "sudo sysctl user.max_user_namespaces=15000"


def _disk() -> Finding:
    folder = cache.root()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / (1 << 30)
    ok = free >= DISK_GIB
    return Finding(
        name=f"{DISK_GIB} GiB of disk",
        ok=ok,
        detail=f"{free:.0f} GiB free at {folder}",
        hint="" if ok else "free some, or point XDG_CACHE_HOME at a larger disk",
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    ok = total >= MEMORY_GIB
    return Finding(
        name=f"{MEMORY_GIB} GiB of memory",
        ok=ok,
        detail=f"{total:.0f} GiB",
        hint="" if ok else "use a machine with more memory",
    )


def _tools() -> Finding:
    missing = binaries.missing_tools()
    detail = "missing: " + ", ".join(tool.name for tool in missing) if missing else "all there"
    hint = _debian() if missing else ""
    return Finding(name="Debian packages", ok=not missing, detail=detail, hint=hint)


def _debian() -> str:
    return binaries.install_command(binaries.missing_tools())
