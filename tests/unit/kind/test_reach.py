"""What is said of an own engine leads the programs that people type to it."""

from __future__ import annotations

import os
import subprocess

import pytest

from testbed.lab.cluster.kind import reach
from testbed.lab.cluster.kind.record import Record


@pytest.fixture
def programs(tmp_path):
    """Scripts that say where they lie, some of them "installed" on the machine."""

    def make(folder, *names):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            path = tmp_path / folder / name
            path.write_text(f"#!/bin/sh\necho {folder}\n")
            path.chmod(0o755)
        return str(tmp_path / folder)

    return make


def record(engine, path, kind, **environment):
    return Record(
        name="x",
        token="t",
        stage="up",
        port=1,
        nodes=1,
        engine=engine,
        own=True,
        environment={"PATH": path, **environment},
        data="",
        cards="t4:1",
        image="",
        runc="",
        kind=f"{kind}/kind",
        mounts=[],
    )


def followed(line, path):
    """Do what the line says in a shell; return which programs are found, and the variables."""
    export = line[line.index("export ") :]
    script = f"{export}; docker; podman; kind; echo $DOCKER_HOST $KIND_EXPERIMENTAL_PROVIDER"
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("installed", [(), ("docker",), ("kind",), ("docker", "kind")])
def test_own_docker(programs, monkeypatch, installed):
    machine = programs("machine", *installed)
    programs("machine", "podman")
    own, kind = programs("o w n", "docker"), programs("tools", "kind")
    monkeypatch.setenv("PATH", machine)
    line = reach.told(record("docker", own, kind, DOCKER_HOST="unix:///run/a b.sock"))
    found = followed(line, machine)
    docker = ["machine"] if "docker" in installed else ["o", "w", "n"]
    where = "machine" if "kind" in installed else "tools"
    assert found == [*docker, "machine", where, "unix:///run/a", "b.sock"]
    assert ("PATH=" in line) == (len(installed) < 2)


def test_own_podman_goes_before_the_machines(programs, monkeypatch):
    machine = programs("machine", "docker", "podman", "kind")
    own = programs("own", "podman")
    monkeypatch.setenv("PATH", machine)
    path = f"{own}{os.pathsep}{machine}"
    line = reach.told(record("podman", path, programs("tools", "kind")))
    assert followed(line, machine) == ["machine", "own", "machine", "podman"]
