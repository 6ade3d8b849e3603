"""Way into the namespaces: detach, take the id map, lay out neutral paths, become pid 1's parent.

One process runs through all stages by ``exec``, so that its pid, reported at the
first of them, stays the handle by which the host ends everything:

    detach → user → pid 1                    (ordinary user: mounts belong to the new namespace)
    detach → mounts → user → pid 1           (root: mounts are laid out before rights are given up)

Reads one JSON document, whose path is the last argument.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def main() -> None:
    stage, path = sys.argv[1], sys.argv[2]
    entry = json.loads(Path(path).read_text())
    # Python ignores these two, and an ignored signal survives exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    {"detach": detach, "mounts": mounts, "user": user, "inner": inner}[stage](entry, path)


def detach(entry: Entry, path: str) -> None:
    """Leave the caller's session and parentage; report the pid that stays."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.write(entry["report_fd"], b"%d\n" % os.getpid())
    if entry["mounts_first"]:
        unshare(["--mount", "--propagation", "private"], "mounts", entry["script"], path)
    unshare(["--user", "--keep-caps"], "user", entry["script"], path)


def mounts(entry: Entry, _path: str) -> None:
    """As root: lay out the neutral paths, then give up the rights."""
    lay_out(entry)
    unshare(["--user", "--keep-caps"], "user", entry["neutral_script"], entry["neutral_entry"])


def user(entry: Entry, path: str) -> None:
    """Wait for the id map, which only the host can write, and become its root."""
    os.write(entry["report_fd"], b"map\n")
    os.close(entry["report_fd"])
    if os.read(entry["go_fd"], 1) != b"g":
        raise SystemExit("the testbed command that started this cluster has gone")
    os.close(entry["go_fd"])
    here = entry["neutral_script"] if entry["mounts_first"] else entry["script"]
    groups = "--clear-groups" if entry["groups"] else "--keep-groups"
    become = ["setpriv", "--reuid", "0", "--regid", "0", groups, "--ambient-caps", "-all"]
    if entry["mounts_first"]:
        command = [sys.executable, "-IS", here, "inner", path]
    else:
        unshared = ["unshare", "--mount", "--propagation", "private"]
        command = [*unshared, sys.executable, "-IS", here, "inner", path]
    os.execvp(become[0], [*become, *command])


def inner(entry: Entry, _path: str) -> None:
    """Start pid 1; when it or this process dies, the kernel ends all the others."""
    if not entry["mounts_first"]:
        lay_out(entry)
    flags = ["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
    os.execvp("unshare", ["unshare", *flags, "--mount-proc", *entry["init"]])


def lay_out(entry: Entry) -> None:
    """Bind the folders of the host at paths that every id may traverse.

    They are gathered in a file system of their own and moved to its place at the
    end, since the folders to bind may themselves lie below that place.
    """
    stage, root = Path(entry["stage"]), entry["root"]
    run("mount", "-n", "-t", "tmpfs", "-o", "mode=755,size=16m", "tmpfs", str(stage))
    for source, name in entry["binds"]:
        target = stage / name
        if Path(source).is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        run("mount", "-n", "--rbind", source, str(target))
    run("mount", "-n", "--move", str(stage), root)


def unshare(flags: list[str], stage: str, script: str, path: str) -> None:
    os.execvp("unshare", ["unshare", *flags, sys.executable, "-IS", script, stage, path])


def run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr.strip()}")


main()
