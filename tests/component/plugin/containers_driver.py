"""Processes that look like containers to the monitor; run by ``test_whose_real``.

Runs as root of a user and mount namespace of its own. Each "container" is a process in
a further mount namespace with kubelet's bind of its termination log; the forger does
in one of them what a tenant who may make user namespaces can do. Prints one JSON
object: what the monitor says of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from testbed.stack.monitor.processes import Processes

OWN = "aaaaaaaa-0000-0000-0000-000000000001"
FIRST = "bbbbbbbb-0000-0000-0000-000000000002"
SECOND = "cccccccc-0000-0000-0000-000000000003"

WAIT = "echo ready && read _"


def start(children: list[subprocess.Popen[str]], *command: str) -> int:
    """Start a process and wait until it says that it is ready."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    children.append(child)
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if line != "ready":
        raise SystemExit(f"{command} said {line!r}")
    return child.pid


def main(base: Path) -> None:
    """Make the containers, ask, print, and end them."""

    def run(*command: str) -> None:
        subprocess.run(command, check=True)

    def log(uid: str) -> str:
        return f"{base}/var/kubelet/pods/{uid}/containers/main/0f3a"

    def bind(uid: str) -> str:
        return f"mount --bind {log(uid)} {base}/log"

    for name in ("var", "forged"):
        (base / name).mkdir()
    (base / "log").touch()
    # Like /var/lib on a node: kubelet's folder is not the root of its file system.
    run("mount", "-t", "tmpfs", "var", f"{base}/var")
    for uid in (OWN, FIRST, SECOND):
        Path(log(uid)).parent.mkdir(parents=True)
        Path(log(uid)).touch()
    children: list[subprocess.Popen[str]] = []
    try:
        pids = {
            uid: start(children, "unshare", "-m", "sh", "-c", f"{bind(uid)} && {WAIT}")
            for uid in (FIRST, SECOND)
        }
        outside = start(children, "unshare", "-m", "sh", "-c", WAIT)
        # The forger is a child of the container's first process.
        script = f"{sys.executable} {Path(__file__).with_name('forger.py')} {base} {SECOND}"
        shell = f"{bind(FIRST)} && unshare -Urm {script}; true"
        parent = start(children, "unshare", "-m", "sh", "-c", shell)
        forger = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
        # Last, so that no child has inherited it: our own line.
        run("mount", "--bind", log(OWN), f"{base}/log")
        processes = Processes(lambda uid, runtime_id: "")
        owners = processes.owners([*pids.values(), outside, forger])
        found = {
            "anchor": [processes.anchor.prefix] if processes.anchor else [],
            "first": [owners[pids[FIRST]].pod_uid, owners[pids[FIRST]].container],
            "second": [owners[pids[SECOND]].pod_uid, owners[pids[SECOND]].container],
            "outside": [owners[outside].pod_uid],
            "forger": [owners[forger].pod_uid],
            "forged_table": [
                line
                for line in Path(f"/proc/{forger}/mountinfo").read_text().splitlines()
                if "/containers/" in line
            ],
        }
        print(json.dumps(found))
    finally:
        for child in children:
            child.kill()
            child.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
