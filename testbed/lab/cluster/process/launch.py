"""Start the processes of a cluster, from outside its namespaces."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import ClusterError, InputError
from testbed.lab.cluster.process import inside, layout
from testbed.lab.cluster.process.identity import Identity

PYTHON = "/usr/bin/python3"
#: Folder of the programs that run inside.
PROGRAMS = Path(inside.__file__).parent
_HANDSHAKE_S = 20.0
_BACKLOG = 128


def listener(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1.

    Raises:
        InputError: the port is taken.
    """
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        raise InputError(
            f"port {port} on 127.0.0.1 cannot be used",
            why=str(error),
            hint="name another with --port, or leave it out: then a free one is taken",
        ) from error
    return made


def copy_programs(folder: Path) -> None:
    """Put the programs that run inside where every id can read them."""
    for name in ("enter.py", "init.py", "relay.py"):
        shutil.copyfile(PROGRAMS / name, folder / name)
        (folder / name).chmod(0o644)


def launch(
    folders: layout.Folders,
    identity: Identity,
    binds: Sequence[tuple[str, str]],
    listening: socket.socket,
    token: str,
    started: Callable[[int], None],
) -> int:
    """Enter the namespaces and start pid 1; return the pid that holds them.

    Args:
        folders: The state folder, in which plan and programs lie.
        identity: The id map.
        binds: Folders to bind below the neutral root.
        listening: The socket that the relay serves.
        token: Goes into the command line of what holds namespaces.
        started: Is told the pid before anything can outlive this process.

    Raises:
        ClusterError: a stage failed, with its own words.
    """
    report_r, report_w = os.pipe()
    go_r, go_w = os.pipe()
    try:
        entry = folders.inside / "entry.json"
        neutral = f"{layout.STATE}/inside"
        init = [PYTHON, "-IS", f"{neutral}/init.py", "--cluster", token, f"{neutral}/outer.json"]
        entry.write_text(
            json.dumps(
                {
                    "report_fd": report_w,
                    "go_fd": go_r,
                    "mounts_first": identity.privileged,
                    "groups": identity.id_range,
                    "script": str(folders.inside / "enter.py"),
                    "neutral_script": f"{neutral}/enter.py",
                    "neutral_entry": f"{neutral}/entry.json",
                    "stage": str(folders.stage),
                    "root": layout.ROOT,
                    "binds": list(binds),
                    "init": [*init, "--listen-fd", str(listening.fileno())],
                }
            )
        )
        entry.chmod(0o644)
        log = folders.logs / "launch.log"
        path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"
        with log.open("ab") as output:
            subprocess.run(
                [PYTHON, "-IS", str(folders.inside / "enter.py"), "detach", str(entry)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": path, "LANG": "C.UTF-8"},
                pass_fds=(report_w, go_r, listening.fileno()),
                check=False,
                timeout=_HANDSHAKE_S,
            )
        os.close(report_w)
        report_w = -1
        pid = int(_line(report_r, log))
        started(pid)
        _line(report_r, log)
        identity.write_maps(pid)
        os.write(go_w, b"g")
        return pid
    finally:
        for fd in (report_r, report_w, go_r, go_w):
            if fd >= 0:
                os.close(fd)


def _line(fd: int, log: Path) -> str:
    """Return the next line of a pipe.

    Raises:
        ClusterError: it was closed, or nothing came.
    """
    text, until = b"", time.monotonic() + _HANDSHAKE_S
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        part = os.read(fd, 1) if ready else b""
        if not part:
            raise ClusterError(
                "the cluster's namespaces could not be made",
                why=log.read_text(errors="replace").strip()[-500:] or "no answer",
                artifacts=log,
            )
        text += part
    return text.decode().strip()
