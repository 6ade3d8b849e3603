"""The containers' /etc/ld.so.cache: the host's libraries, the driver's and the stand-ins'.

With it libcuda.so.1 and the CUDA libraries are found without LD_LIBRARY_PATH, also by
programs that clear their environment. ``ldconfig`` writes the paths that it reads, so it
runs where those folders are mounted as they will be in the container: in a mount
namespace of its own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.errors import MissingTool
from testbed.lab import cache, command
from testbed.lab.binaries import locate
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.images import rootfs
from testbed.stack.names import CONTAINER_DRIVER

_RECIPE = "1"
_LDCONFIG_S = 120.0
_HOST_CACHE = Path("/etc/ld.so.cache")
_HOST_CONFIG = Path("/etc/ld.so.conf")
#: Always asked for, also where the host's configuration leaves them to ldconfig.
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")

#: Both parents become empty folders, so the sources are held open by descriptor 5 and 6
#: and the result is reached as the working folder, wherever the cache lies.
_SCRIPT = f"""
cd "$1"
exec 5<driver
mount -t tmpfs tmpfs /usr/local
mkdir -p {CONTAINER_DRIVER}
mount --no-canonicalize --bind /proc/self/fd/5 {CONTAINER_DRIVER}
if [ -n "$2" ]; then
  exec 6<"$2"
  mount -t tmpfs tmpfs {rootfs.ENVIRONMENTS.rpartition("/")[0]}
  mkdir -p {rootfs.ENVIRONMENTS}/pytorch
  mount --no-canonicalize --bind /proc/self/fd/6 {rootfs.ENVIRONMENTS}/pytorch
fi
exec "$3" -X -C ./ld.so.cache -f ./ld.so.conf
"""


def prepare(
    progress: Progress,
    driver: Sequence[Path],
    environment: Path | None = None,
    folders: tuple[str, ...] = (),
) -> Path:
    """Return the path of the cache file.

    Args:
        progress: Where the step is reported.
        driver: The driver's libraries; nodes bring their own of the same names.
        environment: The PyTorch environment, if there is one.
        folders: Folders of the environment with libraries to find, relative to it.

    Raises:
        MissingTool: no ldconfig or unshare, or namespaces are forbidden.
    """
    config = configuration(folders)
    host = _HOST_CACHE.read_bytes() if _HOST_CACHE.is_file() else b""
    names = "\n".join(library.name for library in driver)
    key = cache.key_of(_RECIPE, config, host, names, environment.name if environment else "")

    def make(folder: Path, step: Step) -> None:
        del step
        (folder / "ld.so.conf").write_text(config)
        (folder / "driver").mkdir()
        for library in driver:
            shutil.copy(library, folder / "driver" / library.name)
        _run(folder, environment)
        shutil.rmtree(folder / "driver")

    text = "make the containers' library cache"
    return cache.obtain("ld-cache", key, make, progress, text) / "ld.so.cache"


def configuration(folders: tuple[str, ...], host: Path = _HOST_CONFIG) -> str:
    """Return the ``ld.so.conf`` of containers: our folders first, then the host's lent ones."""
    lines = [CONTAINER_DRIVER]
    lines += [f"{rootfs.ENVIRONMENTS}/pytorch/{folder}" for folder in folders]
    lines += [
        folder
        for folder in _host_folders(host)
        if re.match(r"(/usr)?/lib(32|64|x32)?(/|$)", folder)
    ]
    lines += [folder for folder in _SYSTEM if folder not in lines and Path(folder).is_dir()]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _host_folders(config: Path) -> list[str]:
    """The folders of an ``ld.so.conf`` and of what it includes."""
    folders: list[str] = []
    for raw in config.read_text().splitlines() if config.is_file() else []:
        line = raw.partition("#")[0].strip()
        if line.startswith("include "):
            pattern = line.removeprefix("include ").strip()
            base = Path("/") if pattern.startswith("/") else config.parent
            for file in sorted(base.glob(pattern.lstrip("/"))):
                folders += _host_folders(file)
        elif line.startswith("/"):
            folders.append(line)
    return folders


def _run(folder: Path, environment: Path | None) -> None:
    what = "cannot make the containers' library cache"
    unshare, ldconfig = locate("unshare"), locate("ldconfig")
    if unshare is None or ldconfig is None:
        raise MissingTool(what, why="unshare or ldconfig is missing", hint="testbed doctor")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script: list[str | Path] = ["sh", "-euc", _SCRIPT, "sh", folder, environment or "", ldconfig]
    command.run(
        [unshare, *user, "--mount", *script],
        what=what,
        timeout_s=_LDCONFIG_S,
        environ=_environ(os.environ),
        hint="user namespaces must be allowed: testbed doctor tells how",
    )


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    folders = [environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return {**environ, "PATH": ":".join(filter(None, folders))}
