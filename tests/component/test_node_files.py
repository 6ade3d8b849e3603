"""What is run in a kind node with real cards, run for real beside a stand-in driver.

`tests/gpu/node_files.py` is what people with a card run. Here the driver is two scripts
and the emulated libraries under the driver's file names, in a namespace of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.native import artifacts

ROOT = Path(__file__).parents[2]
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


@pytest.fixture
def driver(tmp_path):
    """A folder with a driver, a toolkit, its device nodes and its part of /proc."""
    top = tmp_path / "driver"
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


def tried(driver: Path) -> tuple[int, dict]:
    own = [sys.executable, ROOT / "tests/gpu/node_files.py"]
    own += ["--dev", driver / "dev", "--proc", driver / "proc"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *own],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{driver}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STAND_IN_HOST": str(driver / "dev"),
        },
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_node_sees_its_card_and_no_other(driver):
    code, found = tried(driver)
    assert code == 0 and found["held"], json.dumps(found, indent=1)
    assert [node["variant"] for node in found["nodes"]] == [
        "as it is",
        "masked folder",
        "masked params",
    ]
    for node in found["nodes"]:
        # Without the scripts the driver's libraries are not found.
        assert node["control"]["code"] == 12
        assert node["listed"]["out"] == f"GPU 0: NVIDIA X (UUID: {CARDS[0]})"
        assert node["masked"] is True and node["other_left"] is False
        assert node["by_number"] == ["1:3"]  # /dev/null's, which stands for all of them
        assert len(node["scripts"]) == 2 * 5


def test_a_driver_whose_libraries_are_not_told_is_found(driver):
    specification = driver / "lib/specification.json"
    document = json.loads(specification.read_text())
    document["containerEdits"]["hooks"].pop()
    specification.write_text(json.dumps(document))
    code, found = tried(driver)
    assert code == 1 and not found["held"]
    assert "sees no card" in found["nodes"][0]["problem"]


def test_a_card_that_stays_visible_is_found(driver):
    specification = driver / "lib/specification.json"
    document = json.loads(specification.read_text())
    # As if every card needed it: then it is nobody's own and stays.
    document["containerEdits"]["deviceNodes"].append({"path": "/dev/nvidia1"})
    specification.write_text(json.dumps(document))
    code, found = tried(driver)
    assert code == 1 and "does not see the cards" in found["nodes"][0]["problem"]
