"""How an engine of our own is laid out, and what goes with it."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from testbed.lab.cluster.kind import engine as engines
from testbed.lab.cluster.kind import own, packages
from testbed.lab.cluster.kind import place as places
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.packages import Programs

from .process import alive


def place(tmp_path: Path, program: str, **more) -> places.Place:
    wanted = {
        "folder": tmp_path / "state/engine",
        "token": "0123",
        "data": tmp_path / "data",
        "programs": Programs(program=program, root=tmp_path / "root"),
        "front": tmp_path / "front",
        "runc": Path("/usr/sbin/runc"),
        "port": 6443,
    }
    return places.Place(**wanted | more)


def lines(plan) -> list[str]:
    return [" ".join(step.run) for step in plan.setup]


@pytest.mark.parametrize("program", ["docker", "podman"])
def test_what_an_engine_writes_goes_with_its_namespaces(tmp_path, program):
    found = lines(places.plan(place(tmp_path, program)))
    for covered in ("/etc", str(Path("/lib").resolve())):
        assert any("overlay" in line and line.endswith(f" {covered}") for line in found)
    assert found[-1] == "ip link set lo up"
    modules = found.index("mkdir -p /lib/modules")
    assert any(line.startswith("mount -n -t overlay") for line in found[:modules])
    assert "mount -n -t tmpfs -o mode=755 tmpfs /run" in found
    # The machine's settings can be read there and not changed; the network's own can.
    protect = found.index("mount -n -o remount,bind,ro /proc/sys")
    assert found.index("mount -n --bind /proc/sys/net /proc/sys/net") > protect


def test_state_below_run_is_seen_all_the_same(tmp_path):
    folder = Path("/run/user/1/state/vgpu/engine")
    found = lines(places.plan(place(tmp_path, "docker", folder=folder)))
    covers = found.index("mount -n -t tmpfs -o mode=755 tmpfs /run")
    kept = f"{folder}/scratch/run/user/1/state/vgpu"
    assert found.index(f"mount -n --rbind {kept} /run/user/1/state/vgpu") > covers


def test_a_socket_has_a_name_that_the_kernel_takes(tmp_path, monkeypatch):
    """In the state folder; below /run where that has too long a name, whatever its letters."""
    monkeypatch.setattr(places, "SOCKETS", tmp_path)
    fits = Path("/" + "s" * (107 - len("//docker.sock")))
    assert place(tmp_path, "docker", folder=fits).socket == fits / "docker.sock"
    assert len(str(fits / "docker.sock")) == 107
    for folder in (Path(f"{fits}s"), tmp_path / ("ü" * 50)):
        here = place(tmp_path, "docker", folder=folder, token="0123")
        assert here.socket == tmp_path / "vgpu-testbed-0123/docker.sock"
        assert own.engine(here).environ()["DOCKER_HOST"] == f"unix://{here.socket}"
        assert here.socket.parent in here.seen()
        assert not place(tmp_path, "podman", folder=folder).apart()
        # Where containerd's shims make sockets.
        assert places.plan(here).environment["TMPDIR"].startswith("/run/")


def test_sockets_of_an_engine_are_private_and_go_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "SOCKETS", tmp_path / "run")
    (tmp_path / "run").mkdir()
    here = place(tmp_path, "docker", folder=tmp_path / ("s" * 107), token="no-such-token")
    places.write(here)
    assert here.socket.parent.stat().st_mode & 0o777 == 0o700
    daemon = json.loads((here.folder / "daemon.json").read_text())
    assert daemon["hosts"] == [f"unix://{here.socket}"]
    own.stop("no-such-token", None)
    assert list((tmp_path / "run").iterdir()) == []


def test_the_relay_leads_to_the_same_port_inside(tmp_path):
    services = {each.name: each for each in places.plan(place(tmp_path, "docker")).services}
    assert services["relay"].argv[-3:] == ("{listen}", "127.0.0.1", "6443")
    assert services["relay"].listen and "dockerd" in services
    services = {each.name: each for each in places.plan(place(tmp_path, "podman")).services}
    assert list(services) == ["relay"]


def test_podmans_cache_goes_with_it_where_nothing_of_ours_is_below(tmp_path):
    def overlaid(program: str, **more) -> bool:
        found = lines(places.plan(place(tmp_path, program, **more)))
        return any("overlay" in line and line.endswith(" /var/lib") for line in found)

    assert overlaid("podman")
    assert not overlaid("docker")
    assert not overlaid("podman", data=Path("/var/lib/ci/.cache/vgpu-testbed/kind/a"))


def test_conmon_finds_the_libraries_of_the_packages(tmp_path):
    """Podman gives it an environment of its own."""
    here = place(tmp_path, "podman")
    places.write(here)
    config = tomllib.loads((here.folder / "containers.conf").read_text())
    told = dict(each.split("=", 1) for each in config["engine"]["conmon_env_vars"])
    assert told["LD_LIBRARY_PATH"] == here.programs.libraries()
    assert told["PATH"].startswith(str(here.programs.root))


def test_the_engine_s_containerd_makes_no_folders_in_opt(tmp_path):
    """As it does by itself, and dockerd's own has no setting for it."""
    here = place(tmp_path, "docker")
    places.write(here)
    config = tomllib.loads((here.folder / "containerd.toml").read_text())
    assert "io.containerd.internal.v1.opt" in config["disabled_plugins"]
    assert config["root"].startswith(str(here.data))
    address = config["grpc"]["address"]
    assert json.loads((here.folder / "daemon.json").read_text())["containerd"] == address
    services = {each.name: each for each in places.plan(here).services}
    assert services["containerd"].argv[-1] == str(here.folder / "containerd.toml")
    assert services["dockerd"].wait == (f"socket:{address}",)


def test_the_users_docker_and_proxies_have_no_part_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    assert Engine(program="docker").environ()["HTTPS_PROXY"] == "http://proxy:3128"
    found = own.engine(place(tmp_path, "docker"))
    assert found.own
    environ = found.environ()
    assert environ["DOCKER_HOST"] == f"unix://{tmp_path}/state/engine/docker.sock"
    assert environ["DOCKER_CONFIG"].startswith(str(tmp_path))
    assert environ["KIND_EXPERIMENTAL_PROVIDER"] == "docker"
    assert not {"HTTPS_PROXY", "no_proxy"} & set(environ)


def test_groups_of_an_engine_are_removed_and_others_stay(tmp_path):
    mine, others = places.cgroup_of("a"), places.cgroup_of("b")
    for hierarchy in ("memory", "cpu"):
        for name in (mine, others):
            (tmp_path / hierarchy / name / "node/kubelet").mkdir(parents=True)
    (tmp_path / mine).mkdir()
    own.remove_groups(mine, tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))
    assert left == [f"cpu/{others}", f"memory/{others}"]
    assert not (tmp_path / mine).exists()


def test_a_group_that_is_busy_is_given_up_in_time(tmp_path):
    name = places.cgroup_of("a")
    (tmp_path / "memory" / name).mkdir(parents=True)
    (tmp_path / "memory" / name / "task").touch()  # what a rmdir fails at, as a process does
    own.remove_groups(name, tmp_path, deadline_s=0.1)
    assert (tmp_path / "memory" / name).exists()


# --- the engine's program -----------------------------------------------------------------


def fake(tmp_path: Path, name: str, script: str) -> Engine:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return Engine(program=name, environment={"PATH": path})


def test_an_engine_that_answers(tmp_path):
    engine = fake(tmp_path, "docker", 'echo \'{"ServerVersion": "28"}\'')
    assert engine.answers() == {"ServerVersion": "28"}


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo nonsense", 'echo \'{"ServerErrors": ["cannot connect"]}\'', "echo []"],
)
def test_an_engine_that_does_not(tmp_path, script):
    assert fake(tmp_path, "docker", script).answers() is None
    assert Engine(program="no-such-program").answers() is None


def test_an_engine_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "ANSWER_S", 2.0)
    kept = tmp_path / "kept"
    engine = fake(tmp_path, "docker", f"sleep 600 & echo $! >{kept}; wait")
    assert engine.answers() is None
    # A machine too slow to have started it has nothing to end.
    pid = int((kept.read_text() if kept.exists() else "") or 0)
    until = time.monotonic() + 60
    while pid and alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not pid or not alive(pid)


def test_nodes_of_a_cluster_are_read_from_what_inspect_says(tmp_path):
    documents = [
        {
            "Name": "/vgpu-control-plane",
            "State": {"Running": True, "Pid": 7},
            "Config": {"Image": "i:1"},
        },
        {"Name": "vgpu-worker", "State": {"Running": False}, "Config": {}},
    ]
    (tmp_path / "said.json").write_text(json.dumps(documents))
    script = (
        f'[ "$1" = inspect ] && exec cat {tmp_path}/said.json\n'
        "case \"$*\" in *cluster=vgpu*) printf 'vgpu-control-plane\\nvgpu-worker\\n';; esac"
    )
    engine = fake(tmp_path, "docker", script)
    found = engine.containers("vgpu")
    assert found["vgpu-control-plane"] == {"running": True, "pid": 7, "image": "i:1"}
    assert found["vgpu-worker"]["running"] is False
    assert engine.containers("other") == {}


def test_podman_names_an_image_from_an_archive_with_a_host():
    podman, docker = Engine(program="podman"), Engine(program="docker")
    assert podman.named("testbed/kind-node:1") == "localhost/testbed/kind-node:1"
    assert podman.named("docker.io/kindest/node:1") == "docker.io/kindest/node:1"
    assert docker.named("testbed/kind-node:1") == "testbed/kind-node:1"


def test_podman_is_called_only_in_the_namespaces_of_its_token(tmp_path):
    """A pid that another process has by now is not entered."""
    where = place(tmp_path, "podman")
    where.folder.mkdir(parents=True)
    places.write_podman(where)
    (where.folder / "pid").write_text(f"{os.getpid()}\n")
    program = where.folder / "bin/podman"
    done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 125
    assert "does not run" in done.stderr


# --- packages -----------------------------------------------------------------------------

POLICY = """\
docker.io:
  Installed: (none)
  Candidate: 20.10.24
libmnl0:
  Installed: 1.0.4-3
  Candidate: 1.0.4-3
libassuan0:
  Installed: (none)
  Candidate: (none)
"""


def test_libraries_that_a_release_has_not_are_left_out_and_programs_are_not():
    names = ("docker.io", "containerd", "libmnl0", "libassuan0", "libnever1")
    assert packages.available(names, POLICY) == ["docker.io", "containerd", "libmnl0"]
