"""What `make test-gpu` keeps of the tools' outputs, for people to send."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tools():
    spec = importlib.util.spec_from_file_location("gpu_tools", ROOT / "tests/gpu/tools.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_describes_the_machine_stays_at_home(tools):
    document = {"Name": "host.example", "ServerVersion": "29.1", "HttpProxy": "http://u:p@proxy"}
    assert json.loads(tools.kept("docker.json", json.dumps(document))) == {"ServerVersion": "29.1"}
    failed = tools.Answer(code=1, out=json.dumps(document), err="no daemon\n")
    assert "proxy" not in tools.shown("docker.json", failed)
    assert tools.shown("docker.json", failed).endswith("no daemon\nexit 1\n")
    assert tools.kept("docker.json", '{"Name": "host.exam') == ""
    podman = {"host": {"hostname": "h", "cgroupVersion": "v2"}, "registries": {"x": 1}}
    left = json.loads(tools.kept("podman.json", json.dumps(podman)))
    assert left == {"host": {"cgroupVersion": "v2"}}


def test_a_machine_without_the_tools_says_so(tools, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools.sys, "argv", ["tools.py", str(tmp_path / "t.tar.gz")])
    assert tools.main() == 0
    with tarfile.open(tmp_path / "t.tar.gz") as archive:
        names = set(archive.getnames())
        told = archive.extractfile("toolkit/smi-list.txt").read().decode()
    assert {f"toolkit/{name}" for name in (*tools.COMMANDS, *tools.FILES)} <= names
    assert told.startswith("not there: nvidia-smi")
