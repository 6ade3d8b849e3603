"""Bundles: only what there is, and nothing of an earlier failure."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any, cast

import pytest

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.errors import ClusterError, InputError
from testbed.lab import bundle
from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus
from testbed.lab.kubetypes import Unreachable
from testbed.native.region import RegionConstant, RegionDevice, make_region


class Logs:
    """A cluster that has these logs; an error where there are None."""

    def __init__(self, text: str | None = "") -> None:
        self._text = text

    name = "t"

    def status(self) -> ClusterStatus:
        return ClusterStatus(name="t", provider="process", state="absent")

    def collect_logs(self, folder: Path) -> None:
        if self._text is None:
            raise ClusterError("the node is away")
        if self._text:
            folder.mkdir(parents=True)
            (folder / "kubelet.log").write_text(self._text)


def collect(folder: Path, logs: Logs) -> Path | None:
    return bundle.collect(folder, cast(Any, logs), None)


def test_nothing_started_is_no_bundle(tmp_path: Path) -> None:
    assert collect(tmp_path / "bundle", Logs()) is None
    assert not (tmp_path / "bundle").exists()


def test_an_earlier_failure_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    (folder / "pods").mkdir(parents=True)
    (folder / "pods/old.log").touch()
    assert collect(folder, Logs("started")) == folder
    assert {path.name for path in folder.iterdir()} == {
        *("components", "versions.json", "doctor.json")
    }


def test_a_full_disk_moves_a_bundle_to_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    full = tmp_path / "full"

    class Full(Logs):
        def collect_logs(self, folder: Path) -> None:
            if folder.is_relative_to(full):
                raise OSError(28, "No space left on device")
            super().collect_logs(folder)

    found = collect(full / "bundle", Full("started"))
    assert found is not None and found.parent == scratch
    assert (found / "components/kubelet.log").read_text() == "started"
    assert not (full / "bundle").exists()


def test_no_room_at_all_is_no_bundle_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    class Full(Logs):
        def collect_logs(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    assert collect(tmp_path / "bundle", Full()) is None
    assert [*scratch.iterdir()] == [] and not (tmp_path / "bundle").exists()


def test_what_could_not_be_had_is_named(tmp_path: Path) -> None:
    assert collect(tmp_path / "bundle", Logs(None)) == tmp_path / "bundle"
    assert "the node is away" in (tmp_path / "bundle/problems.txt").read_text()


class Node(Logs):
    """A cluster of one node, whose files lie in a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            "started with token: eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl"
        )
        self._root = root

    def status(self) -> ClusterStatus:
        node = NodeStatus(name="n1", ready=True)
        return ClusterStatus(name="t", provider="process", state="up", nodes=(node,))

    def node_root(self, node: str) -> Path | None:
        return self._root if node == "n1" else None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a card, a container's region, and what a tenant put beside them."""
    root = tmp_path / "root"
    (uuid,) = driver_root.make(root / "run/vgpu-emulated", [CardSpec()])
    container = root / "var/lib/vgpu-testbed/containers/uid_main"
    container.mkdir(parents=True)
    devices = (RegionDevice(uuid=uuid, memory_limit_bytes=1 << 30),)
    make_region(container, "r", RegionConstant(devices=devices, pod_uid="uid"))
    secret = tmp_path / "host-secret"
    secret.write_text("of the host\n" * 500_000)
    (container / "link.cache").symlink_to(secret)
    os.mkfifo(container / "pipe.cache")
    (container / "theirs.txt").write_text("a tenant's own file")
    (container.parent / "away").symlink_to(tmp_path)
    return Node(root)


def test_regions_and_cards_are_values_and_tenants_files_stay_where_they_are(
    tmp_path: Path, node: Node
) -> None:
    folder = collect(tmp_path / "bundle", node)
    assert folder is not None
    region = json.loads((folder / "nodes/n1/regions/uid_main.json").read_text())
    assert region["constant"]["devices"][0]["memory_limit_bytes"] == 1 << 30
    (card,) = (folder / "nodes/n1/cards").iterdir()
    assert json.loads(card.read_text())["description"]["name"] == "NVIDIA A100-SXM4-80GB"
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"of the host" not in everything and b"tenant's own" not in everything
    assert not (folder / "problems.txt").exists()


def test_an_archive_and_a_folder(tmp_path: Path, node: Node) -> None:
    out = bundle.write(tmp_path / "out/b.tar.gz", cast(Any, node), None)
    with tarfile.open(out) as file:
        names = file.getnames()
    assert "b/nodes/n1/regions/uid_main.json" in names
    assert [path.name for path in out.parent.iterdir()] == ["b.tar.gz"]
    assert (bundle.write(tmp_path / "b", cast(Any, node), None) / "status.json").exists()


def test_places_that_cannot_be(tmp_path: Path, node: Node) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="exists already"):
        bundle.write(tmp_path / "there", cast(Any, node), None)
    with pytest.raises(InputError, match="no bundle can be written"):
        bundle.write(Path("/proc/x/b"), cast(Any, node), None)
    with pytest.raises(InputError, match="nothing to bundle"):
        bundle.write(tmp_path / "none", cast(Any, Logs()), None)
    assert not (tmp_path / "none").exists()


def test_a_server_that_goes_away_in_between_is_asked_for_no_more_logs(tmp_path: Path) -> None:
    asked: list[str] = []

    class Going:
        def list(self, version: str, kind: str) -> list[dict[str, Any]]:
            if kind != "Pod":
                return []
            spec = {"containers": [{"name": "c"}]}
            return [{"metadata": {"namespace": "n", "name": name}, "spec": spec} for name in "ab"]

        def logs(self, namespace: str, name: str, container: str, *, tail: int) -> str:
            asked.append(name)
            raise Unreachable("the API server does not answer")

    problems: list[str] = []
    bundle._objects(tmp_path, cast(Any, Going()), problems)
    assert asked == ["a"]
    assert any("not asked for any more" in problem for problem in problems)
