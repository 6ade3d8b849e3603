"""`--cards nvidia` in a real kind node, beside a stand-in driver: from nothing to nothing.

Device nodes are what a driver makes in /dev of the machine; these are /dev/null's under
the driver's names, and are removed again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from .. import stand_in_driver

NAME = f"r{os.getpid()}"
DEVICES = tuple(Path("/dev", name) for name in ("nvidia0", "nvidia1", "nvidiactl"))


@pytest.fixture(scope="module")
def nvidia(driver, tmp_path_factory):
    """The environment in which the stand-in driver is the machine's."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver of its own: make test-gpu is what tells of it")
    made: list[Path] = []
    try:
        for path in DEVICES:
            try:
                os.mknod(path, 0o20666, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("root may not make device nodes here")
            made.append(path)
        folder = stand_in_driver.make(tmp_path_factory.mktemp("driver") / "driver")
        yield {"PATH": f"{folder}/bin:{os.environ['PATH']}", "STAND_IN_HOST": "/dev"}
    finally:
        for path in made:
            path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def cluster(driver, nvidia):
    command = ("up", "--provider", "kind", "--bare", "--name", NAME)
    try:
        driver(*command, "--cards", "nvidia:device=1", **nvidia)
        yield driver
    finally:
        driver("down", "--name", NAME)


def inside(driver, script: str) -> str:
    record = driver.record(NAME)
    return subprocess.run(
        ["docker", "exec", f"{NAME}-control-plane", "sh", "-c", script],
        env={**os.environ, **record["environment"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_a_node_sees_the_card_that_it_was_given(cluster, nvidia):
    uuid = stand_in_driver.CARDS[1]
    assert inside(cluster, "nvidia-smi -L") == f"GPU 1: NVIDIA X (UUID: {uuid})\n"
    # The other card's device node is gone from the node, and is there on the machine.
    assert inside(cluster, "ls -d /dev/nvidia*").split() == ["/dev/nvidia1", "/dev/nvidiactl"]
    assert all(path.exists() for path in DEVICES)
    assert "-> /dev/nvidia" in inside(cluster, "ls -l /dev/char/1:3")
    status = cluster.json("status", "--name", NAME)
    assert status["nodes"][0]["cards"] == [uuid]
    assert "real cards" in " ".join(status["notes"])


def test_what_was_mounted_is_what_the_dry_run_said(cluster, nvidia):
    said = cluster(
        *("up", "--provider", "kind", "--name", NAME, "--cards", "nvidia:device=1"),
        *("--dry-run", "-o", "json"),
        **nvidia,
    )
    config = (cluster.state / NAME / "kind.yaml").read_text()
    told, given = json.loads(said.stdout)["config"], yaml.safe_load(config)
    assert told["networking"].keys() <= given["networking"].keys()
    given["networking"] = told["networking"]  # the port that was free
    assert told == given


def test_a_second_up_gives_the_same_card_again(cluster, nvidia):
    command = ("up", "--provider", "kind", "--bare", "--name", NAME, "--cards", "nvidia:device=1")
    inside(cluster, "rm /dev/char/1:3")
    cluster(*command, **nvidia)
    assert "-> /dev/nvidia" in inside(cluster, "ls -l /dev/char/1:3")
    other = cluster(*command[:-1], "nvidia:device=0", rc=2, **nvidia)
    assert "its cards are 'nvidia:device=1'" in other.stderr


def test_a_card_that_is_gone_is_an_error(cluster, nvidia):
    with contextlib.ExitStack() as back:
        DEVICES[1].rename("/dev/nvidia-gone")
        back.callback(Path("/dev/nvidia-gone").rename, DEVICES[1])
        done = cluster(
            *("up", "--provider", "kind", "--bare", "--name", NAME, "--cards", "nvidia:device=1"),
            rc=2,
            **nvidia,
        )
    assert f"no card {stand_in_driver.CARDS[1]}" in done.stderr or "no card 1" in done.stderr
