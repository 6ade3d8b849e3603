"""Files of a cluster's state folder: given to the mapped ids, removed at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import ClusterError
from testbed.lab.cluster.process.identity import Identity

_REMOVE_S = 120.0
#: Becomes root of a new user namespace once its ids are mapped, then the command given.
_MAPPED = 'echo; read -r go && exec setpriv --reuid 0 --regid 0 --clear-groups -- "$@"'


def give(folder: Path, identity: Identity) -> None:
    """Make a folder and all in it belong to the cluster's root."""
    if not identity.privileged:
        return
    os.chown(folder, identity.uid, identity.gid)
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(top) / name, identity.uid, identity.gid, follow_symlinks=False)


def remove(path: Path, identity: Identity) -> None:
    """Remove a folder, whichever of the mapped ids its files belong to.

    Raises:
        ClusterError: something stays.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if os.geteuid() != 0:
        # Overlayfs leaves folders that not even their owner may enter.
        subprocess.run(["chmod", "-R", "u+rwX", str(path)], capture_output=True, check=False)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists() and identity.id_range:
        _as_mapped_root(identity, ["rm", "-rf", "--", str(path)])
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise ClusterError(
            f"{path} cannot be removed",
            why="files in it belong to others, or are still in use",
            hint=f"sudo rm -rf {path}",
        )


def _as_mapped_root(identity: Identity, command: Sequence[str]) -> None:
    """Run a command as root of a user namespace with the cluster's ids."""
    argv = ["unshare", "--user", "--keep-caps", "sh", "-c", _MAPPED, "sh", *command]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdin is not None and child.stdout is not None
        if child.stdout.readline():
            identity.write_maps(child.pid)
            child.stdin.write(b"go\n")
            child.stdin.close()
        try:
            child.wait(_REMOVE_S)
        except subprocess.TimeoutExpired:
            child.kill()
