"""The machine's own programs: found, installed as root, or one command to say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import MissingTool, TestbedError
from testbed.lab.binaries import tools
from testbed.lab.progress import QuietProgress

QUIET = QuietProgress()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no program but those in the folder that is returned."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(tools, "_SEARCH", ())
    monkeypatch.setattr(tools, "_CNI_FOLDERS", (str(tmp_path / "cni"),))
    monkeypatch.setattr(tools, "_APT_LISTS", tmp_path / "lists")
    return folder


def program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def everything(machine: Path, *, but: str = "") -> None:
    for tool in tools.TOOLS:
        if tool.name not in ("cni", "python3", but):
            program(machine / tool.name)
    if but != "cni":
        for plugin in ("ptp", "host-local", "loopback"):
            program(machine.parent / "cni" / plugin)


def test_all_there(machine: Path) -> None:
    everything(machine)
    paths = tools.ensure_tools(QUIET)
    assert set(paths) == {tool.name for tool in tools.TOOLS}
    assert paths["runc"] == machine / "runc"
    assert paths["cni"] == machine.parent / "cni"
    assert paths["python3"] == Path("/usr/bin/python3")


def test_plugins_count_only_together(machine: Path) -> None:
    everything(machine)
    (machine.parent / "cni/ptp").unlink()
    assert [tool.name for tool in tools.missing_tools()] == ["cni"]


def test_a_user_gets_one_command(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (machine.parent / "lists").mkdir()
    (machine.parent / "lists/x_Packages").touch()
    program(machine / "apt-get", "touch called")
    everything(machine, but="nft")
    (machine / "runc").unlink()
    with pytest.raises(MissingTool) as caught:
        tools.ensure_tools(QUIET)
    assert caught.value.hint == ("sudo apt-get install --yes --no-install-recommends nftables runc")
    assert "nft (Services (kube-proxy))" in caught.value.what
    assert not Path("called").exists()


def test_a_new_system_reads_the_lists_of_packages_first(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    everything(machine, but="nft")
    with pytest.raises(MissingTool) as caught:
        tools.ensure_tools(QUIET)
    assert caught.value.hint == (
        "sudo apt-get update && sudo apt-get install --yes --no-install-recommends nftables"
    )


@pytest.mark.parametrize("fresh", [True, False])
def test_root_installs_what_is_missing(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    everything(machine, but="nft")
    lists = tmp_path / "lists"
    lists.mkdir()
    if not fresh:
        (lists / "x_Packages").touch()
    log = tmp_path / "log"
    program(
        machine / "apt-get",
        f"echo $DEBIAN_FRONTEND $* >> {log}; [ $1 = update ] || echo > {machine}/nft\n"
        f"[ $1 = update ] || /bin/chmod 755 {machine}/nft",
    )
    assert tools.ensure_tools(QUIET)["nft"] == machine / "nft"
    install = "noninteractive install --yes --no-install-recommends nftables"
    update = ["noninteractive update"] if fresh else []
    assert log.read_text().splitlines() == [*update, install]


def test_old_lists_are_read_anew(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    everything(machine, but="nft")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/x_Packages").touch()
    program(
        machine / "apt-get",
        f"[ $1 = update ] && echo > {tmp_path}/updated && exit\n"
        f"[ -e {tmp_path}/updated ] || {{ echo 404 not found; exit 100; }}\n"
        f"echo > {machine}/nft; /bin/chmod 755 {machine}/nft",
    )
    assert tools.ensure_tools(QUIET)["nft"] == machine / "nft"


def test_what_apt_says_reaches_the_user(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    everything(machine, but="nft")
    program(machine / "apt-get", "[ $1 = update ] || { echo E: no such package; exit 100; }")
    with pytest.raises(TestbedError, match="cannot install nftables") as caught:
        tools.ensure_tools(QUIET)
    assert "E: no such package" in caught.value.why


def test_an_installation_without_effect_is_said(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    everything(machine, but="ip")
    program(machine / "apt-get")
    with pytest.raises(MissingTool, match="still missing") as caught:
        tools.ensure_tools(QUIET)
    assert caught.value.hint.startswith("apt-get ")


def test_root_without_apt_gets_the_command_too(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    everything(machine, but="cni")
    with pytest.raises(MissingTool, match="pod networks"):
        tools.ensure_tools(QUIET)
