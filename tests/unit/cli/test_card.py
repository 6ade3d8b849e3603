"""Cards without a cluster: what there are, and a session on some."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.card import PROFILES
from testbed.card.spec import CardSpec
from testbed.cli.main import app
from testbed.errors import InputError, MissingTool
from testbed.lab import shell
from testbed.lab.progress import QuietProgress
from testbed.native.region import read_region
from testbed.units import MIB

QUIET = QuietProgress()
TWO = (CardSpec(profile="a100-80gb"), CardSpec(profile="a100-40gb"))


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Temporary folders of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, ["card", *arguments])


def test_every_card_is_listed_with_source_and_confidence_of_each_figure():
    found = json.loads(call("ls", "-o", "json").stdout)
    assert {each["name"] for each in found} == set(PROFILES)
    for each in found:
        assert json.loads(call("show", each["name"], "--json").stdout) == each
        for figure in each["figures"].values():
            assert figure["source"] and figure["confidence"]
    table = call("ls").stdout
    assert all(name in table for name in PROFILES)
    assert "85,899,345,920" in call("show", "a100-80gb").stdout


def test_an_unknown_card_names_the_nearest():
    for arguments in (("show", "a100-80g"), ("shell", "--card", "a100-80g", "true")):
        done = call(*arguments)
        assert done.exit_code == 2
        assert "did you mean a100-80gb?" in done.stderr


def test_a_session_has_its_cards_and_leaves_nothing(scratch):
    with shell.session(TWO, QUIET, with_torch=False) as found:
        assert found.models == ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB")
        assert found.environ["LD_LIBRARY_PATH"] == str(found.root / "driver")
        assert "LD_PRELOAD" not in found.environ
        assert len(list((found.root / "cards").iterdir())) == 2
    assert list(scratch.iterdir()) == []


def test_limits_are_given_as_the_plugin_gives_them(scratch):
    limits = shell.Limits(mem_mib=4096, core_pct=30, policy="force")
    with shell.session(TWO, QUIET, limits=limits, with_torch=False) as found:
        environ = found.environ
        assert environ["LD_PRELOAD"].endswith("libvgpu.so")
        assert environ["CUDA_DEVICE_MEMORY_LIMIT_1"] == "4096m"
        assert environ["CUDA_DEVICE_SM_LIMIT"] == "30"
        assert environ["GPU_CORE_UTILIZATION_POLICY"] == "force"
        view = read_region(Path(environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]))
        devices = view.constant.devices
        assert [each.uuid for each in devices] == list(found.uuids)
        assert {each.memory_limit_bytes for each in devices} == {4096 * MIB}
        assert {each.sm_limit_pct for each in devices} == {30}
    assert list(scratch.iterdir()) == []


def test_a_share_of_compute_alone_leaves_the_whole_memory():
    with shell.session(TWO, QUIET, limits=shell.Limits(core_pct=50), with_torch=False) as found:
        assert found.environ["CUDA_DEVICE_MEMORY_LIMIT_0"] == "81050m"
        assert found.environ["CUDA_DEVICE_MEMORY_LIMIT_1"] == "40540m"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: shell.Limits(mem_mib=-1), "not possible"),
        (lambda: shell.Limits(core_pct=101), "not possible"),
        (lambda: shell.Limits(policy="never"), "one of default, force, disable"),
    ],
)
def test_limits_that_there_cannot_be(make, why):
    with pytest.raises(InputError, match=why):
        make()


def test_more_memory_than_the_card_has_is_refused_and_nothing_is_left(scratch):
    limits = shell.Limits(mem_mib=50_000)
    with (
        pytest.raises(InputError, match="more than a card has"),
        shell.session(TWO, QUIET, limits=limits, with_torch=False),
    ):
        pass
    assert list(scratch.iterdir()) == []


def test_more_memory_than_the_card_has_where_the_rest_may_lie_outside():
    limits = shell.Limits(mem_mib=100_000, oversubscribe=True)
    with shell.session(TWO, QUIET, limits=limits, with_torch=False) as found:
        assert found.environ["CUDA_OVERSUBSCRIBE"] == "true"
        assert found.environ["CUDA_DEVICE_MEMORY_LIMIT_0"] == "100000m"
        view = read_region(Path(found.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]))
        assert view.constant.oversubscribe


def test_a_session_in_a_session_has_its_own_cards_and_limits(monkeypatch):
    limits = shell.Limits(mem_mib=4096, core_pct=30)
    with shell.session(TWO, QUIET, limits=limits, with_torch=False) as outer:
        preload = outer.environ["LD_PRELOAD"]
        for name, value in outer.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LD_PRELOAD", f"{preload}:/usr/lib/libother.so")
        monkeypatch.setenv("VGPU_EMU_CARDS", str(outer.root / "cards"))
        monkeypatch.setenv("LIBCUDA_LOG_LEVEL", "2")
        with shell.session(TWO, QUIET, with_torch=False) as inner:
            assert inner.environ["LD_PRELOAD"] == "/usr/lib/libother.so", "no limiter"
            assert not [name for name in inner.environ if name.startswith("CUDA_")]
            assert "VGPU_EMU_CARDS" not in inner.environ
            assert inner.environ["LIBCUDA_LOG_LEVEL"] == "2"
        with shell.session(TWO, QUIET, limits=limits, with_torch=False) as inner:
            assert inner.environ["LD_PRELOAD"] == f"{preload} /usr/lib/libother.so"
            region = inner.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
            assert region != outer.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]


def test_what_a_killed_session_left_goes_and_what_is_in_use_stays(scratch):
    left = scratch / "vgpu-card-left"
    left.mkdir()
    (left / ".in-use").touch()
    (scratch / "vgpu-card-beginning").mkdir()  # has no lock yet
    with shell.session(TWO, QUIET, with_torch=False) as outer:
        assert not left.exists()
        with shell.session(TWO, QUIET, with_torch=False):
            pass
        assert outer.root.exists()
    assert [path.name for path in scratch.iterdir()] == ["vgpu-card-beginning"]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM)]
)
def test_the_exit_status_is_the_command_s(script, code):
    assert shell.run(["sh", "-c", script], os.environ) == code
    done = call("shell", "--no-torch", "--", "sh", "-c", script)
    assert done.exit_code == code


def test_a_program_that_there_is_not():
    with pytest.raises(MissingTool, match="no program 'no-such-program'"):
        shell.run(["no-such-program"], os.environ)
    assert call("shell", "--no-torch", "no-such-program").exit_code == 2


def test_an_interrupt_is_the_command_s_and_the_cards_go(scratch):
    """As a terminal does it: SIGINT to the whole group; the command decides what it means."""
    script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    environ = {**os.environ, "TMPDIR": str(scratch)}
    program = "from testbed.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *("card", "shell", "--no-torch", "sh", "-c", script)],
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
        assert process.wait(120) == 5
    assert list(scratch.iterdir()) == []


def test_a_session_that_is_ended_ends_its_command(scratch):
    program = "from testbed.cli import main; main()"
    script = "echo $$; exec sleep 60"
    with subprocess.Popen(
        [sys.executable, "-c", program, *("card", "shell", "--no-torch", "sh", "-c", script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
        text=True,
    ) as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 2
        assert not Path(f"/proc/{command}").exists()
    assert list(scratch.iterdir()) == []
