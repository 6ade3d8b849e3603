"""`--cards nvidia` in a real kind node, beside a stand-in driver: from nothing to nothing.

Device nodes are what a driver makes in /dev of the machine; these are /dev/null's under
the driver's names, and are removed again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from testbed.lab.images import PAUSE

from .. import stand_in_driver

NAME = f"r{os.getpid()}"
DEVICES = tuple(Path("/dev", name) for name in ("nvidia0", "nvidia1", "nvidiactl"))


@dataclass(frozen=True, kw_only=True)
class Stand:
    """The stand-in driver on this machine."""

    top: Path
    cards: tuple[str, ...]
    path: str

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": self.path, "STAND_IN_HOST": "/dev"}


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
        top = tmp_path_factory.mktemp("driver")
        cards = stand_in_driver.make_cards(top / "cards")
        folder = stand_in_driver.make(top / "driver", libraries=stand_in_driver.SYSTEM, cards=cards)
        yield Stand(top=top, cards=cards, path=f"{folder}/bin:{os.environ['PATH']}")
    finally:
        for path in made:
            path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def cluster(driver, nvidia):
    command = ("up", "--provider", "kind", "--bare", "--name", NAME)
    try:
        driver(*command, "--cards", "nvidia:device=1", **nvidia.environment)
        yield driver
    finally:
        driver("down", "--name", NAME)


def inside(driver, script: str, *, given: bytes = b"") -> str:
    """Run a script in the node, with what it is given to read; return what it says."""
    record = driver.record(NAME)
    done = subprocess.run(
        ["docker", "exec", "-i", f"{NAME}-control-plane", "sh", "-c", script],
        env={**os.environ, **record["environment"]},
        input=given,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_node_sees_the_card_that_it_was_given(cluster, nvidia):
    uuid = nvidia.cards[1]
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
        **nvidia.environment,
    )
    config = (cluster.state / NAME / "kind.yaml").read_text()
    told, given = json.loads(said.stdout)["config"], yaml.safe_load(config)
    assert told["networking"].keys() <= given["networking"].keys()
    given["networking"] = told["networking"]  # the port that was free
    assert told == given


def test_a_second_up_gives_the_same_card_again(cluster, nvidia):
    command = ("up", "--provider", "kind", "--bare", "--name", NAME, "--cards", "nvidia:device=1")
    inside(cluster, "rm /dev/char/1:3")
    cluster(*command, **nvidia.environment)
    assert "-> /dev/nvidia" in inside(cluster, "ls -l /dev/char/1:3")
    other = cluster(*command[:-1], "nvidia:device=0", rc=2, **nvidia.environment)
    assert "its cards are 'nvidia:device=1'" in other.stderr


def test_the_stack_serves_the_card(cluster, nvidia, tmp_path):
    """The plugin calls the node's nvidia-ctk, and containerd gives a pod what that lists."""
    uuid = nvidia.cards[1]
    give_books(cluster, nvidia, uuid)
    cluster("deploy", "--name", NAME)
    kubectl = ("kubectl", "--name", NAME)
    node = json.loads(cluster(*kubectl, "get", "nodes", "-o", "json").stdout)["items"][0]
    assert uuid in node["metadata"]["annotations"]["hami.io/node-nvidia-register"]
    specification = json.loads(
        inside(cluster, f"cat /var/run/cdi/vgpu-testbed.dev-gpu-{uuid}.json")
    )
    assert specification["devices"][0]["name"] == uuid
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        # The only image that lends nothing of the machine's /usr/lib, like one with CUDA.
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": PAUSE,
                    "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2048}},
                }
            ]
        },
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    cluster(*kubectl, "apply", "-f", str(tmp_path / "pod.yaml"))
    cluster(*kubectl, "wait", "pod/one", "--for=condition=Ready", "--timeout=180s")
    given = f"{stand_in_driver.SYSTEM}/libcuda.so.580.1", "/dev/nvidia1", "/dev/nvidiactl"
    held = " && ".join(f"test -e $each/root{path}" for path in (*given, "/usr/local/vgpu/region"))
    found = inside(
        cluster,
        f"for each in /proc/[0-9]*; do {held} && cat $each/comm && ls $each/root/dev; done; true",
    ).split()
    assert found[:1] == ["pause"] and "nvidia0" not in found
    cluster(*kubectl, "delete", "pod", "one", "--now")


def give_books(cluster, nvidia: Stand, uuid: str) -> None:
    """Put what the stand-in's libraries count in where they look for it: ``../cards``."""
    folder = Path(stand_in_driver.SYSTEM).parent / "cards"
    inside(cluster, f"mkdir -p {folder} && mount -t tmpfs -o mode=755 tmpfs {folder}")
    packed = subprocess.run(
        ["tar", "-c", "--sparse", "-C", str(nvidia.top / "cards/cards"), uuid],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    ).stdout
    inside(cluster, f"tar -x -C {folder}", given=packed)


def test_a_card_that_is_gone_is_an_error(cluster, nvidia):
    with contextlib.ExitStack() as back:
        DEVICES[1].rename("/dev/nvidia-gone")
        back.callback(Path("/dev/nvidia-gone").rename, DEVICES[1])
        done = cluster(
            *("up", "--provider", "kind", "--bare", "--name", NAME, "--cards", "nvidia:device=1"),
            rc=2,
            **nvidia.environment,
        )
    assert f"no card {nvidia.cards[1]}" in done.stderr or "no card 1" in done.stderr
