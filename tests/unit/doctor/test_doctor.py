"""What the doctor says."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.lab import binaries, doctor
from testbed.lab.binaries import tools
from testbed.lab.images import pytorch


def test_missing_packages_are_one_line_with_the_command_as_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = tuple(tool for tool in tools.TOOLS if tool.name in ("runc", "nft"))
    monkeypatch.setattr(binaries, "missing_tools", lambda: lacking)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (found,) = [f for f in doctor.diagnose() if f.name == "Debian packages"]
    assert not found.ok
    assert found.detail == "missing: runc, nft"
    assert found.hint.startswith("sudo apt-get ")
    assert found.hint.endswith(" nftables runc")


def finding(name: str) -> doctor.Finding:
    (found,) = [each for each in doctor.diagnose() if each.name == name]
    return found


@pytest.mark.parametrize(
    ("value", "uid", "ok"),
    [(None, 1000, True), ("0", 1000, True), ("1", 1000, False), ("1", 0, True)],
)
def test_apparmor_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch, value: str | None, uid: int, ok: bool
) -> None:
    monkeypatch.setattr(doctor, "_sysctl", lambda key: value if "apparmor" in key else None)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    found = doctor._apparmor()
    assert found.ok is ok
    assert bool(found.hint) is not ok


@pytest.mark.parametrize(("limit", "used", "ok"), [("128", 0, True), ("128", 120, False)])
def test_inotify_counts_what_is_free(
    monkeypatch: pytest.MonkeyPatch, limit: str, used: int, ok: bool
) -> None:
    monkeypatch.setattr(doctor, "_sysctl", lambda key: limit)
    monkeypatch.setattr(doctor, "_inotify_in_use", lambda: used)
    found = doctor._inotify()
    assert found.ok is ok
    assert ("sysctl fs.inotify.max_user_instances" in found.hint) is not ok


def test_inotify_instances_of_this_process_are_counted() -> None:
    libc = ctypes.CDLL(None)
    before = doctor._inotify_in_use()
    descriptor = libc.inotify_init()
    try:
        assert doctor._inotify_in_use() == before + 1
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("mounts", "word"),
    [
        ("1 2 0:1 / /c rw - cgroup2 cgroup2 rw\n", "version 2;"),
        ("1 2 0:1 / /c rw - cgroup cgroup rw\n", "version 1;"),
        ("1 2 0:1 / /c rw - cgroup c rw\n1 2 0:1 / /d rw - cgroup2 c rw\n", "hybrid"),
        ("1 2 0:1 / / rw - ext4 /dev/x rw\n", "none;"),
    ],
)
def test_cgroups_are_told_and_never_a_fault(
    monkeypatch: pytest.MonkeyPatch, mounts: str, word: str
) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: mounts)
    found = doctor._cgroups()
    assert found.ok and word in found.detail


@pytest.mark.parametrize(("kib", "ok"), [(8 << 20, True), (1 << 20, False)])
def test_memory_that_others_use_is_not_there(
    monkeypatch: pytest.MonkeyPatch, kib: int, ok: bool
) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: f"MemAvailable:  {kib} kB\n")
    assert doctor._memory().ok is ok


def test_state_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert finding("1 GiB for state").ok
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = doctor._state()
    assert not found.ok and "XDG_STATE_HOME" in found.hint


def test_every_fault_has_a_command_that_helps() -> None:
    for each in doctor.diagnose():
        assert each.ok or each.hint, each


def test_what_limits_do_not_stop_is_said_on_every_machine() -> None:
    """Also where nothing is amiss: in the table's words and in the document."""
    done = CliRunner().invoke(app, ["doctor"])
    told = " ".join(done.stdout.split())
    assert all(each in told.replace("- ", "") for each in ("raw ioctl", "region of his own"))
    assert "no security boundary" in told and "bypass/ways" in told
    done = CliRunner().invoke(app, ["doctor", "-o", "json"])
    documents = json.loads(done.stdout)
    [found] = [each for each in documents if each["name"] == "what limits do not stop"]
    assert found["ok"] and "preload" in found["detail"]
    assert done.exit_code == (0 if all(each["ok"] for each in documents) else 2)


def test_what_the_first_run_fetches_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = {each.name: each for each in doctor.diagnose()}["made before"]
    assert told.ok  # minutes, not a fault
    assert "Kubernetes (" in told.detail and "PyTorch's environment (540 MB" in told.detail
    monkeypatch.setattr(binaries, "cached", lambda: tmp_path)
    monkeypatch.setattr(pytorch, "downloaded", lambda: True)
    told = {each.name: each for each in doctor.diagnose()}["made before"]
    assert "Kubernetes" not in told.detail and "PyTorch" not in told.detail
