"""A driver and a container toolkit of NVIDIA's, as far as kind nodes notice: two scripts.

``nvidia-smi`` lists the cards whose device nodes it sees, if the loader knows the driver's
libraries; ``nvidia-ctk`` prints a specification, whose hook does nothing. The libraries are
the emulated ones under the driver's file names. On the host the scripts need
``STAND_IN_HOST``: the folder of the device nodes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.native import artifacts

#: A folder of libraries in which the stack's plugin looks for a driver.
SYSTEM = "/usr/lib/x86_64-linux-gnu"
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
  "cdi generate"*) if [ -n "$STAND_IN_HOST" ]; then cat {0}; else cat {0}.node; fi ;;
  *) exit 3 ;;
esac
"""
#: containerd runs it for every container that gets a card.
HOOK = "#!/bin/sh\ncat >/dev/null\n"


def make(top: Path, *, libraries: str = "", cards: tuple[str, ...] = CARDS) -> Path:
    """Make the driver, its toolkit, device nodes and part of /proc in a new folder.

    Args:
        top: The folder.
        libraries: Where a node has the libraries; where they are here without it.
        cards: Uuids of the cards.
    """
    for name in ("bin", "lib", "dev", "proc"):
        (top / name).mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        real = top / "lib" / name.replace(".so.1", ".so.580.1")
        shutil.copy(artifacts.library(name), real)
    folder = libraries or f"{top}/lib"
    specification = top / "lib/specification.json"
    files = {str(each): f"{folder}/{each.name}" for each in (top / "lib").glob("*.so.580.1")}
    inside = f"{specification}.node"
    files |= {each: each for each in (f"{top}/bin/nvidia-smi", inside)}
    # As the tool says it: here with where files are here, in a node with where they are there.
    for name, mounts in ((str(specification), files), (inside, _same(files))):
        Path(name).write_text(json.dumps(_document(folder, mounts, cards)))
    for name, text in (
        ("nvidia-smi", SMI.format(*cards, folder)),
        ("nvidia-ctk", CTK.format(specification)),
        ("nvidia-cdi-hook", HOOK),
    ):
        (top / "bin" / name).write_text(text)
        (top / "bin" / name).chmod(0o755)
    # Character devices without being root: links to one.
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (top / "dev" / name).symlink_to("/dev/null")
    (top / "proc/params").write_text("RmLogonRC: 1\nModifyDeviceFiles: 1\n")
    return top


def make_cards(folder: Path) -> tuple[str, ...]:
    """Make what the libraries count in, below ``folder/cards``; return the cards' uuids."""
    return driver_root.make(folder, [CardSpec(profile="a100-80gb", count=len(CARDS))])


def _same(files: Mapping[str, str]) -> dict[str, str]:
    return {at: at for at in files.values()}


def _document(folder: str, mounts: Mapping[str, str], cards: tuple[str, ...]) -> dict[str, object]:
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
    link = f"libcuda.so.1::{folder}/libcuda.so"
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
            for number, uuid in enumerate(cards)
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "hooks": [
                {**hook, "args": ["nvidia-cdi-hook", "create-symlinks", "--link", link]},
                {**hook, "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", folder]},
            ],
            "mounts": [
                {"hostPath": source, "containerPath": at, "options": ["ro", "bind"]}
                for source, at in mounts.items()
            ],
        },
    }
