"""What is run in a kind node with real cards, run for real beside a stand-in driver.

`tests/gpu/node_files.py` is what people with a card run. Here the driver is two scripts
and the emulated libraries under the driver's file names, in a namespace of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .. import stand_in_driver

ROOT = Path(__file__).parents[2]


@pytest.fixture
def driver(tmp_path):
    return stand_in_driver.make(tmp_path / "driver")


def tried(driver: Path) -> tuple[int, dict]:
    own = [sys.executable, ROOT / "tests/gpu/node_files.py"]
    own += ["--dev", driver / "dev", "--proc", driver / "proc"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *own],
        capture_output=True,
        text=True,
        timeout=240,
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
        assert node["listed"]["out"] == f"GPU 0: NVIDIA X (UUID: {stand_in_driver.CARDS[0]})"
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
