"""What `testbed up --provider kind --dry-run` says, without engine, build or card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from testbed.card.spec import parse_nodes
from testbed.cli.main import app
from testbed.errors import InputError
from testbed.lab import images
from testbed.lab.cluster.kind import (
    choice,
    engine,
    gpu,
    gpu_cards,
    gpu_host,
    preview,
    toolkit,
)
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.progress import QuietProgress
from testbed.lab.testbed import Testbed, cluster_spec

DATA = Path(__file__).parents[2] / "data/toolkit"
H200 = "GPU-70fdb96f-f37a-30df-7b71-24f4b3cfaa1c"
LIBRARY = "/usr/local/nvidia/lib64/libcuda.so.580.159.04"


def text(name: str) -> str:
    return (DATA / name).read_text()


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """A machine with an engine, on which nothing has been made, and nothing may be."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a dry run makes nothing")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("prepare", "native_folder"):
        monkeypatch.setattr(images, name, refuse)
    monkeypatch.setattr(
        choice,
        "look",
        lambda: choice.Choice(program="docker", engine=None, why="docker, for a test"),
    )
    yield
    assert not (tmp_path / "state").exists()


@pytest.fixture
def h200(monkeypatch):
    host = gpu.GpuHost(
        cards=(gpu_cards.RealCard(index=0, uuid=H200, name="NVIDIA H200", minor=0),),
        toolkit=toolkit.Toolkit(
            version=(1, 20, 0), programs={"/usr/bin/nvidia-ctk": "/usr/bin/nvidia-ctk"}
        ),
        parts=toolkit.parse_specification(text("h200/specification-1.20.0.json")),
    )
    monkeypatch.setattr(gpu_host, "look", lambda: host)


def asked(*words: str):
    return CliRunner().invoke(app, ["up", "--provider", "kind", "--name", "x", "--dry-run", *words])


def test_what_is_printed_is_what_kind_is_given(h200):
    found = preview.preview("x", parse_nodes("nvidia")[1])
    (node,) = found.nodes
    assert node.devices == (H200,) and found.way == "files"
    (document,) = found.config["nodes"]
    given = [(m["hostPath"], m["containerPath"]) for m in document["extraMounts"]]
    assert given == [(mount.source, mount.target) for mount in node.mounts]
    assert (LIBRARY, LIBRARY) in given
    words = found.text()
    for mount in node.mounts:
        assert mount.source in words and mount.target in words
    assert [script.what for script in node.scripts][-1] == "link device nodes by number"
    # The configuration can be cut out of it and given to kind.
    assert yaml.safe_load(words.partition("# kind's configuration")[2]) == found.config


def test_emulated_cards_mount_no_driver_of_the_machine():
    found = preview.preview("x", parse_nodes("a100-80gb:2;t4:1")[1])
    assert [node.profiles for node in found.nodes] == ["a100-80gb:2", "t4:1"]
    assert found.gpu_access == "none" and found.driver_root == "/run/vgpu-emulated"
    for node in found.nodes:
        assert not [m for m in node.mounts if "nvidia" in m.source or m.source == "/dev/null"]
        cards = [m.source for m in node.mounts if m.target == "/mnt/testbed/cards"]
        assert len(cards) == 1 and cards[0].endswith(f"/cards/{node.name}")
    assert "made by the first up" in " ".join(found.notes)


def test_the_command_prints_a_document(h200):
    done = asked("--cards", "nvidia", "-o", "json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["way"] == "files" and document["gpu_access"] == "privileged"
    assert document["nodes"][0]["devices"] == [H200]
    assert {"source": LIBRARY, "target": LIBRARY, "read_only": True} in document["nodes"][0][
        "mounts"
    ]
    people = asked("--cards", "nvidia")
    assert people.exit_code == 0 and LIBRARY in people.stdout


def test_cards_that_the_machine_has_not_are_an_error(h200):
    assert asked("--cards", "nvidia:2").exit_code == 2
    assert asked("--cards", "nvidia:device=0;nvidia:device=0").exit_code == 2
    assert asked("--cards", "nvidia;t4").exit_code == 2


@pytest.mark.parametrize(
    ("variable", "value"), [(choice.OWN_VARIABLE, "mine"), (engine.VARIABLE, "dokcer")]
)
def test_a_mistyped_variable_is_an_error_as_for_up(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    done = asked("--cards", "t4", "-o", "json")
    assert done.exit_code == 2 and value in json.loads(done.stdout)["error"]["what"]
    monkeypatch.delenv(variable)
    assert asked("--cards", "t4", "-o", "json").exit_code == 0


def test_a_process_cluster_has_no_dry_run_and_no_real_cards():
    done = CliRunner().invoke(app, ["up", "--provider", "process", "--name", "x", "--dry-run"])
    assert done.exit_code == 2
    with pytest.raises(InputError, match="emulated cards only"):
        Testbed("x", "process").check(cluster_spec("nvidia"))
    Testbed("x", "process").check(ClusterSpec())


def test_a_kind_cluster_asks_the_machine_before_anything_is_made(h200):
    Testbed("x", "kind").check(cluster_spec("nvidia"))
    with pytest.raises(InputError, match="no card 3"):
        Testbed("x", "kind").check(cluster_spec("nvidia:device=3"))


def test_mig_devices_are_not_for_the_stack(monkeypatch):
    cards = gpu_cards.parse_list(text("made/smi-list-mig.txt"))[:2]
    parts = toolkit.parse_specification(text("made/specification-mig.json"))
    host = gpu.GpuHost(cards=cards, toolkit=toolkit.Toolkit(version=(1, 18, 1)), parts=parts)
    monkeypatch.setattr(gpu_host, "look", lambda: host)
    spec = cluster_spec("nvidia:0:1")
    with pytest.raises(InputError, match="MIG mode") as failed:
        Testbed("x", "kind").check(spec)
    assert "--bare" in failed.value.hint
    Testbed("x", "kind").check(spec, bare=True)
    Testbed("x", "kind").check(cluster_spec("nvidia:device=1"))


def test_cases_on_real_cards_want_an_image_with_cuda(monkeypatch):
    monkeypatch.delenv("VGPU_TESTBED_PYTORCH_IMAGE", raising=False)
    with pytest.raises(InputError, match="cannot run on real cards") as failed:
        Testbed("x", "kind").ensure(cluster_spec("nvidia"), QuietProgress())
    assert "VGPU_TESTBED_PYTORCH_IMAGE" in failed.value.hint
    # With it the next thing is asked of the machine.
    monkeypatch.setenv("VGPU_TESTBED_PYTORCH_IMAGE", "testbed/pytorch-cuda:local")
    monkeypatch.setattr(gpu_host, "ask", lambda *_, **__: gpu_host.Answer(code=None, out=""))
    with pytest.raises(InputError, match="no NVIDIA driver"):
        Testbed("x", "kind").ensure(cluster_spec("nvidia"), QuietProgress())
