"""What this machine lacks, each with the one command that helps."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError, MissingTool, TestbedError
from testbed.lab import binaries, cache
from testbed.lab.cluster.process import identity
from testbed.lab.cluster.state import state_home
from testbed.lab.images import pytorch
from testbed.native import artifacts

#: Free space that downloads and builds need at their peak, GiB.
DISK_GIB = 12
MEMORY_GIB = 4
#: What must not be in use by others.
AVAILABLE_GIB = 2
#: What a testbed's state grows to in an hour of runs.
STATE_GIB = 1
#: inotify instances of a testbed, counted: control plane, and each node.
_INOTIFY_CLUSTER, _INOTIFY_NODE = 11, 8
_OPEN_APPARMOR = "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One need, whether it is met, and what to do if not."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


#: What no library in user space can stop (``scenarios/bypass`` shows what of it is noticed).
BYPASSES = (
    "a program that calls the card's kernel module itself (raw ioctl), is linked statically or"
    " against another C library, or finds the driver's functions past dlsym",
    "a tenant who writes the region of his own container, or the page of a card that he is on",
    "a privileged container that replaces /etc/ld.so.preload; admission refuses it while its"
    " webhook or its policies are there",
)


def bypasses() -> Finding:
    """Say what the limits do not stop on any machine: they keep honest programs apart."""
    return Finding(
        name="what limits do not stop",
        ok=True,
        detail="; ".join(BYPASSES),
        hint="testbed run bypass/ways shows which of it is noticed",
    )


def diagnose(provider: str = "process", *, real_cards: bool = False) -> tuple[Finding, ...]:
    """Look at the machine; change nothing.

    Args:
        provider: The kind of cluster that is to run here: ``process`` or ``kind``.
        real_cards: Whether nodes shall carry the machine's own cards (kind only).

    Raises:
        InputError: a variable names an engine that there is not.
    """
    if provider == "kind":
        return _diagnose_kind(real_cards)
    return (
        _machine(),
        _python(),
        _user_namespaces(),
        _apparmor(),
        _ids(),
        _cgroups(),
        _inotify(),
        _disk(),
        _state(),
        _memory(),
        _tools(),
        _built(),
    )


def _diagnose_kind(real_cards: bool) -> tuple[Finding, ...]:
    # Here, since both take their Finding from this module.
    from testbed.lab import doctor_gpu, doctor_kind

    program = doctor_kind.installed()
    engine = doctor_kind.engine_facts(program) if program else None
    found = (
        _machine(),
        _python(),
        *doctor_kind.findings(engine),
        _disk(),
        _state(),
        _memory(),
        _tools(),
        _built(*doctor_kind.unmade(engine)),
    )
    if not real_cards:
        return found
    told = None if isinstance(engine, InputError) else engine
    return (*found, *doctor_gpu.findings(doctor_gpu.look(told)))


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
    try:
        done = subprocess.run(
            [unshare, "--user", "--map-root-user", "--mount", "--net", "true"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(
            name="user namespaces",
            ok=False,
            detail="making one takes longer than 10 s",
            hint="end what keeps the machine busy, and ask again",
        )
    if done.returncode == 0:
        return Finding(name="user namespaces", ok=True, detail="allowed")
    return Finding(
        name="user namespaces", ok=False, detail=done.stderr.strip(), hint=_allow_user_namespaces()
    )


def _allow_user_namespaces() -> str:
    if _sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return _OPEN_APPARMOR
    if _sysctl("kernel.unprivileged_userns_clone") == "0":
        return "sudo sysctl kernel.unprivileged_userns_clone=1"
    return "sudo sysctl user.max_user_namespaces=15000"


def _apparmor() -> Finding:
    """AppArmor lets a namespace be made and then takes its rights away, which the trial
    above shows as well; here it is called by its name."""
    value = _sysctl("kernel.apparmor_restrict_unprivileged_userns")
    if value is None:
        detail = "does not restrict namespaces here"
    elif value == "0":
        detail = "lets users have namespaces"
    else:
        detail = "restricts users' namespaces" + (", not root's" if os.geteuid() == 0 else "")
    ok = value in (None, "0") or os.geteuid() == 0
    return Finding(name="AppArmor", ok=ok, detail=detail, hint="" if ok else _OPEN_APPARMOR)


def _ids() -> Finding:
    """Never a fault: without a range only pods that ask for another user are refused."""
    if identity.choose("vgpu").id_range:
        return Finding(name="ids for pods", ok=True, detail="a range: pods may set runAsUser")
    return Finding(
        name="ids for pods",
        ok=True,
        detail="one: pods run as user 0 of the testbed only",
        hint="optional: sudo apt-get install uidmap && sudo usermod --add-subuids 100000-165535"
        " --add-subgids 100000-165535 $USER",
    )


def _cgroups() -> Finding:
    """Never a fault: the testbed runs with version 1, version 2 and none."""
    mounts = _text(Path("/proc/self/mountinfo"))
    kinds = {line.partition(" - ")[2].split()[0] for line in mounts.splitlines() if " - " in line}
    if {"cgroup", "cgroup2"} <= kinds:
        detail = "versions 1 and 2 (hybrid)"
    elif "cgroup2" in kinds:
        detail = "version 2"
    elif "cgroup" in kinds:
        detail = "version 1"
    else:
        detail = "none"
    return Finding(name="cgroups", ok=True, detail=f"{detail}; the testbed uses none")


def _inotify() -> Finding:
    """Too few of them show as "too many open files", or as pods that never start."""
    limit, free = _sysctl("fs.inotify.max_user_instances"), free_inotify() or 0
    needed = _INOTIFY_CLUSTER + _INOTIFY_NODE
    ok = limit is None or free >= needed
    return Finding(
        name="inotify instances",
        ok=ok,
        detail=f"{free} of {limit} free; {_INOTIFY_CLUSTER} and {_INOTIFY_NODE} a node are used",
        hint="" if ok else "sudo sysctl fs.inotify.max_user_instances=512",
    )


def free_inotify() -> int | None:
    """Return how many inotify instances this user can still have, None without a limit."""
    limit = _sysctl("fs.inotify.max_user_instances")
    return None if limit is None else int(limit) - _inotify_in_use()


def sysctl(key: str) -> str | None:
    """Return a setting of the kernel, None where it has not that one."""
    return _sysctl(key)


def _inotify_in_use() -> int:
    """Return how many this user holds; root's cluster counts as its own range's."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or not ours to look into
            if process.stat().st_uid == os.geteuid():
                found += sum(map(_is_inotify, (process / "fd").iterdir()))
    return found


def _is_inotify(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()) == "anon_inode:inotify"
    except OSError:  # closed meanwhile
        return False


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


def _state() -> Finding:
    """Where a testbed's state lies: logs, etcd, what containers write."""
    folder = state_home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / (1 << 30)
    writable = os.access(folder, os.W_OK)
    ok = writable and free >= STATE_GIB
    detail = f"{free:.0f} GiB free at {folder}" + ("" if writable else ", not writable")
    hint = "" if ok else "free some, or point XDG_STATE_HOME at a larger folder of yours"
    return Finding(name=f"{STATE_GIB} GiB for state", ok=ok, detail=detail, hint=hint)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    available = int(found[1]) / (1 << 20) if found else total
    # A machine of 4 GiB shows a little less than that.
    enough = total >= 0.9 * MEMORY_GIB
    ok = enough and available >= AVAILABLE_GIB
    if ok:
        hint = ""
    elif enough:
        hint = f"end something: {AVAILABLE_GIB} GiB must be available"
    else:
        hint = "use a machine with more memory"
    return Finding(
        name=f"{MEMORY_GIB} GiB of memory",
        ok=ok,
        detail=f"{total:.0f} GiB, {available:.1f} available",
        hint=hint,
    )


def _tools() -> Finding:
    missing = binaries.missing_tools()
    detail = "missing: " + ", ".join(tool.name for tool in missing) if missing else "all there"
    hint = _debian() if missing else ""
    return Finding(name="Debian packages", ok=not missing, detail=detail, hint=hint)


def _built(*more: str) -> Finding:
    """What is not there yet is made by the first run: never a fault, but minutes.

    Args:
        more: What the kind of cluster needs beside what all need, and is not there.
    """
    missing = []
    try:
        artifacts.library("libcuda.so.1")
    except MissingTool:
        missing.append("the C libraries (make native)")
    if binaries.cached() is None:
        missing.append("Kubernetes (up to 10 minutes, once)")
    if not _pytorch():
        missing.append("PyTorch's environment (540 MB to download, once)")
    missing += more
    detail = "the first run makes " + ", ".join(missing) if missing else "all at hand"
    return Finding(name="made before", ok=True, detail=detail)


def _pytorch() -> bool:
    try:
        return pytorch.downloaded()
    except TestbedError:
        return False  # no interpreter for containers: the first run says which


def _sysctl(key: str) -> str | None:
    return _text(Path("/proc/sys", *key.split("."))).strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _debian() -> str:
    return binaries.install_command(binaries.missing_tools())
