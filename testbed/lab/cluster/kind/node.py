"""What is done in a node once its container runs: cards, logs, images. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from testbed.card.driver_root import MARK
from testbed.lab.cluster.kind.layout import SEED, SERVICE_LOGS
from testbed.stack import names

#: Services of a node whose journal becomes a file.
SERVICES = ("kubelet", "containerd")


def setup_script() -> str:
    """Return the script that gives a node its cards and logs; running it again is harmless.

    The cards' state is shared memory, and so is what the plugin keeps for containers: on a
    disk each write-back would stop their readers. So they lie on file systems without one.
    """
    root, hook = names.EMULATED_DRIVER_ROOT, names.HOOK_PATH
    lines = [
        "set -e",
        # A file system of its own: engines make /run one from which nothing is executed,
        # and the driver's libraries lie here. Its mark comes last: without it, once more.
        f"mkdir -p {root}",
        f"mountpoint -q {root} || mount -t tmpfs -o mode=755 tmpfs {root}",
        f"if [ ! -e {root}/{MARK} ] && [ -e {SEED}/{MARK} ]; then",
        f"  cp -r --preserve=mode --sparse=always {SEED}/cards {SEED}/driver {root}",
        f"  cp {SEED}/{MARK} {root}",
        "fi",
        f"mkdir -p {hook} {SERVICE_LOGS}",
        f"mountpoint -q {hook} || mount -t tmpfs -o mode=755 tmpfs {hook}",
    ]
    for name in SERVICES:
        unit = f"vgpu-log-{name}"
        follow = f"exec journalctl -u {name} -n all -f -o cat >{SERVICE_LOGS}/{name}.log"
        lines.append(
            f"systemctl is-active --quiet {unit} ||"
            f" systemd-run --quiet --collect --unit={unit} sh -c {shlex.quote(follow)}"
        )
    return "\n".join(lines)


def import_script(archives: Sequence[str]) -> str:
    """Return the script that imports archives, and that garbage collection leaves them."""
    options = "--no-unpack --label=io.cri-containerd.pinned=pinned"
    words = " ".join(shlex.quote(each) for each in archives)
    return (
        f"for each in {words}; do"
        f' ctr -n k8s.io images import {options} "$each" >/dev/null || exit; done'
    )
