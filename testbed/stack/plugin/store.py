"""The plugin's files on the node: libraries by build, one folder for each container."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

from testbed.errors import DeployError
from testbed.native.artifacts import build_of
from testbed.stack import names
from testbed.stack.plugin.answer import RegionPlan

_log = logging.getLogger(__name__)

_FOLDER = re.compile(r"^(?P<uid>[0-9a-fA-F-]{8,64})_(?P<container>[a-z0-9]([-a-z0-9]*[a-z0-9])?)$")

#: A container's folder is made before its pod can be seen in every list.
SWEEP_AGE_S = 60.0


def install_library(hook: Path, source: Path) -> str:
    """Copy the library to ``<hook>/lib/<build>`` and return the build.

    The build is the content's hash: running containers keep the file they started
    with, a new build lies beside it, and no file is ever written twice.

    Raises:
        DeployError: the library cannot be read or the folder not written.
    """
    try:
        content = source.read_bytes()
        build = build_of(content)
        folder = hook / "lib" / build
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=f".{build}-", dir=folder.parent))
            (fresh / "libvgpu.so").write_bytes(content)
            (fresh / "ld.so.preload").write_text(names.CONTAINER_LIBRARY + "\n")
            (fresh / "libvgpu.so").chmod(0o755)
            (fresh / "ld.so.preload").chmod(0o644)
            fresh.chmod(0o755)
            try:
                fresh.rename(folder)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise DeployError(
            f"the library cannot be installed below {hook}", why=str(error)
        ) from error
    return build


def prepare_folder(plan: RegionPlan, make_region: Callable[[RegionPlan], None]) -> None:
    """Make a container's folder, and with ``make_region`` region, lock file and link in it.

    The folder may be there already (kubelet asks again; the runtime leaves its mount
    points, such as ``driver/`` and an empty ``libvgpu.so``, in it). Whatever bears one
    of our three names is removed, never followed: a tenant may have put it there.
    """
    folder = Path(plan.folder)
    folder.mkdir(parents=True, exist_ok=True)
    # 0777 whatever the umask: containers run as any user.
    folder.chmod(0o777)
    region = f"{plan.cache_uuid}.cache"
    for name in (Path(names.CONTAINER_REGION_LINK).name, region, f"{region}.lock"):
        _clear(folder / name)
    make_region(plan)


def sweep(
    hook: Path,
    pods: AbstractSet[str],
    *,
    proc: Path = Path("/proc"),
    now: float | None = None,
) -> tuple[str, ...]:
    """Remove the folders of pods that are gone; return their names.

    Args:
        pods: The uids of the node's pods.
        proc: The node's processes: a folder that one of them has mounted stays.
        now: For tests.
    """
    root = hook / "containers"
    moment = time.time() if now is None else now
    stale = []
    try:
        entries = sorted(root.iterdir())
    except FileNotFoundError:
        return ()
    for path in entries:
        match = _FOLDER.match(path.name)
        if match is None or match["uid"] in pods:
            continue
        if moment - path.lstat().st_mtime >= SWEEP_AGE_S:
            stale.append(path)
    if not stale:
        return ()
    mounted = mounted_folders(proc)
    gone = []
    for path in stale:
        if path.name in mounted:
            continue
        # rmtree does not follow links, so a tenant's link leads nowhere.
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            _log.warning("folder %s cannot be removed", path)
        else:
            gone.append(path.name)
    return tuple(gone)


def mounted_folders(proc: Path) -> frozenset[str]:
    """Return the names of container folders that a living process has mounted."""
    found: set[str] = set()
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "mountinfo").read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile, or a zombie
        for line in text.splitlines():
            fields = line.split(" ", 5)
            if len(fields) > 4 and "/containers/" in fields[3]:
                found.add(fields[3].rsplit("/containers/", 1)[1].split("/", 1)[0])
    return frozenset(found)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
