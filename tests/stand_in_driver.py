"""A driver and a container toolkit of NVIDIA's, as far as kind nodes notice: two scripts.

``nvidia-smi`` lists the cards whose device nodes it sees, if the loader knows the driver's
libraries; ``nvidia-ctk`` prints a specification. The libraries are the emulated ones under
the driver's file names. On the host the scripts need ``STAND_IN_HOST``: the folder of the
device nodes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from testbed.native import artifacts

CARDS = ("GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-0000-4000-8000-000000000001")

#: Lists the cards whose device node it sees, if the loader knows the driver's libraries.
SMI = """#!/bin/sh
if [ "$1" != -L ]; then
  echo "0, {0}, NVIDIA X, 580.1, 81920, Disabled"
  echo "1, {1}, NVIDIA X, 580.1, 81920, Disabled"
  exit
fi
if [ -z "$STAND_IN_HOST" ] && ! ldconfig -p | grep -q "libnvidia-ml.so.1 .*=> {2}"; then
  echo "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system." >&2; exit 12
fi
dev=${{STAND_IN_HOST:-/dev}}
test -c $dev/nvidia0 && echo "GPU 0: NVIDIA X (UUID: {0})"
test -c $dev/nvidia1 && echo "GPU 1: NVIDIA X (UUID: {1})"
exit 0
"""
CTK = """#!/bin/sh
case "$*" in
  --version) echo "NVIDIA Container Toolkit CLI version 1.18.1" ;;
  "cdi list") echo nvidia.com/gpu=0 ;;
  "cdi generate"*) cat {0} ;;
  *) exit 3 ;;
esac
"""


def make(top: Path) -> Path:
    """Make the driver, its toolkit, device nodes and part of /proc in a new folder."""
    for name in ("bin", "lib", "dev", "proc"):
        (top / name).mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        real = top / "lib" / name.replace(".so.1", ".so.580.1")
        shutil.copy(artifacts.library(name), real)
    specification = top / "lib/specification.json"
    files = [*(top / "lib").glob("*.so.580.1"), top / "bin/nvidia-smi", specification]
    link = f"libcuda.so.1::{top}/lib/libcuda.so"
    hooks = [
        {
            "hookName": "createContainer",
            "path": "/x",
            "args": ["x", "create-symlinks", "--link", link],
        },
        {
            "hookName": "createContainer",
            "path": "/x",
            "args": ["x", "update-ldcache", "--folder", f"{top}/lib"],
        },
    ]
    document = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
            for number, uuid in enumerate(CARDS)
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "hooks": hooks,
            "mounts": [{"hostPath": str(f), "containerPath": str(f)} for f in files],
        },
    }
    specification.write_text(json.dumps(document))
    for name, text in (
        ("nvidia-smi", SMI.format(*CARDS, f"{top}/lib")),
        ("nvidia-ctk", CTK.format(specification)),
    ):
        (top / "bin" / name).write_text(text)
        (top / "bin" / name).chmod(0o755)
    # Character devices without being root: links to one.
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (top / "dev" / name).symlink_to("/dev/null")
    (top / "proc/params").write_text("RmLogonRC: 1\nModifyDeviceFiles: 1\n")
    return top
