"""``up`` on an engine that is there, with stand-ins for it and for kind: how it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.errors import ClusterError, InputError, TestbedError
from testbed.lab.cluster.kind import KindCluster, choice
from testbed.lab.cluster.process import launch
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.progress import QuietProgress
from testbed.lab.testbed import Testbed

from . import standins
from .process import alive

QUIET = QuietProgress()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A cluster whose ``docker`` and ``kind`` are scripts; returns it and their diary."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    programs = tmp_path / "programs"
    programs.mkdir()
    diary = tmp_path / "diary"

    def script(name: str, text: str) -> Path:
        path = programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{diary}\n{text}\n')
        path.chmod(0o755)
        return path

    def build(*, docker: str, kind: str) -> KindCluster:
        script("docker", docker)
        script("kind", kind)
        monkeypatch.setattr(choice, "look", lambda: standins.chosen(programs))
        return standins.cluster(programs)

    return build, diary, tmp_path / "state/vgpu-testbed"


def nodes(flag: Path) -> str:
    """Return an engine that has the cluster's node while a file is there."""
    return (
        f'case "$*" in\nps*) [ -e {flag} ] && echo x-control-plane ;;\n'
        'inspect*) echo \'[{"Name": "/x-control-plane", "State": {}, "Config": {}}]\' ;;\n'
        "esac\nexit 0"
    )


def test_a_cluster_that_kind_cannot_make_leaves_its_logs_only(world, tmp_path):
    build, diary, state = world
    flag = tmp_path / "node"
    kind = (
        'case "$1" in\n'
        f"create) touch {flag}; echo 'ERROR: no room' >&2; exit 1 ;;\n"
        'export) mkdir -p "$3"; echo log >"$3/node.log" ;;\n'
        f"delete) rm {flag} ;;\nesac"
    )
    cluster = build(docker=nodes(flag), kind=kind)
    with pytest.raises(TestbedError, match="kind cannot create the cluster") as caught:
        cluster.up(ClusterSpec(), QUIET)
    assert "no room" in caught.value.why
    said = diary.read_text()
    assert said.index("kind create") < said.index("kind export") < said.index("kind delete")
    assert "--retain" in said  # without it there would be no logs to export
    assert [path.name for path in (state / "x").iterdir()] == ["logs"]
    assert (state / "x/logs/kind/node.log").exists()
    assert cluster.status().state == "absent"
    cluster.down(QUIET)
    assert not (state / "x").exists()


def test_an_interrupted_up_leaves_nothing(world, tmp_path):
    build, _, state = world
    flag = tmp_path / "node"
    kind = f'case "$1" in\ncreate) touch {flag}; echo here ;;\ndelete) rm {flag} ;;\nesac'
    cluster = build(docker=nodes(flag), kind=kind)
    with pytest.raises(KeyboardInterrupt):
        cluster.up(ClusterSpec(), Interrupting())
    assert not flag.exists() and not (state / "x").exists()


class Interrupting(QuietProgress):
    """Ctrl-C while kind makes the nodes."""

    @contextlib.contextmanager
    def step(self, text):
        yield self

    def update(self, text):
        raise KeyboardInterrupt


def test_somebody_elses_cluster_of_that_name_is_left_alone(world, tmp_path):
    build, diary, state = world
    flag = tmp_path / "node"
    flag.touch()
    cluster = build(docker=nodes(flag), kind="exit 1")
    with pytest.raises(InputError, match="has not made") as caught:
        cluster.up(ClusterSpec(), QUIET)
    assert "kind delete cluster --name x" in caught.value.hint
    assert "kind " not in diary.read_text().replace("io.x-k8s.kind", "")
    assert not (state / "x").exists()


def test_what_cannot_be_is_said_before_anything_is_made(world, tmp_path, monkeypatch):
    build, _, state = world
    flag = tmp_path / "node"
    build(docker=nodes(flag), kind="exit 1")
    testbed = Testbed("x", "kind")
    testbed.check(ClusterSpec())
    flag.touch()
    with pytest.raises(InputError, match="has not made"):
        testbed.check(ClusterSpec())

    def none():
        raise ClusterError("no container engine can be used")

    monkeypatch.setattr(choice, "look", none)
    with pytest.raises(ClusterError, match="no container engine"):
        testbed.check(ClusterSpec())
    assert not (state / "x").exists()


def test_a_port_that_is_taken(world, tmp_path):
    build, _, state = world
    cluster = build(docker=nodes(tmp_path / "none"), kind="exit 0")
    with launch.listener(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}"):
            cluster.up(ClusterSpec(port=port), QUIET)
    assert not (state / "x").exists()


def test_down_of_a_node_that_does_not_go_keeps_the_record(world, tmp_path):
    """So that the next ``down`` finds it."""
    build, _, state = world
    flag = tmp_path / "node"
    kind = f'[ "$1" = create ] && touch {flag}\nexit 1'
    cluster = build(docker=nodes(flag), kind=kind)
    with pytest.raises(TestbedError):
        cluster.up(ClusterSpec(), QUIET)
    assert (state / "x/kind.json").exists()
    assert cluster.status().state == "broken"
    with pytest.raises(TestbedError, match="cannot delete"):
        cluster.down(QUIET)
    assert (state / "x/kind.json").exists()


def test_down_waits_for_an_engine_that_is_away(world, tmp_path):
    """Its nodes would come back with it, and nothing would know them."""
    build, _, state = world
    flag, away = tmp_path / "node", tmp_path / "away"
    kind = (
        f'case "$1" in\ncreate) touch {flag} {away}; exit 1 ;;\ndelete) rm {flag} ;;\nesac\nexit 0'
    )
    docker = f"[ ! -e {away} ] || {{ echo 'Cannot connect' >&2; exit 1; }}\n{nodes(flag)}"
    cluster = build(docker=docker, kind=kind)
    with pytest.raises(TestbedError):
        cluster.up(ClusterSpec(), QUIET)
    with pytest.raises(TestbedError, match="docker does not answer") as caught:
        cluster.down(QUIET)
    assert "Cannot connect" in caught.value.why and "start docker" in caught.value.hint
    assert (state / "x/kind.json").exists()
    away.unlink()
    cluster.down(QUIET)
    assert not flag.exists() and not (state / "x").exists()


def test_kind_ends_with_the_command_that_is_killed(world, tmp_path):
    build, _, _ = world
    began = tmp_path / "began"
    kind = (
        f'[ "$1" != create ] || {{ echo $$ >{began}.new; mv {began}.new {began}; exec sleep 600; }}'
    )
    build(docker=nodes(tmp_path / "none"), kind=kind)
    said = tmp_path / "said"
    with said.open("w") as file:
        command = subprocess.Popen(
            [sys.executable, standins.__file__, str(tmp_path / "programs")], stderr=file
        )
    try:
        until(lambda: began.exists() or command.poll() is not None)
        assert command.poll() is None, said.read_text()
        pid = int(began.read_text())
        assert alive(pid)
    finally:
        command.kill()
        command.wait()
    try:
        until(lambda: not alive(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_images_for_a_cluster_that_is_not_there(world, tmp_path):
    build, _, _ = world
    cluster = build(docker=nodes(tmp_path / "none"), kind="exit 0")
    with pytest.raises(ClusterError, match="is not up"):
        cluster.load_images((), QUIET)
