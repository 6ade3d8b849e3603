"""Image archives: what the digests say is true, and the same content gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.images import archive, rootfs

SETTINGS = archive.Settings(env={"A": "b", "C": "d"}, entrypoint=["/x"], command=["y"])


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        files = {}
        for member in tar.getmembers():
            handle = tar.extractfile(member)
            if handle:
                files[member.name] = handle.read()
        return files


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert descriptor["size"] == len(data)
    assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    return data


def test_digests_lead_from_the_index_to_the_layer(tmp_path: Path) -> None:
    content = archive.layer([archive.Entry(name="x", data=b"1", mode=0o755)])
    archive.write(tmp_path / "a", "testbed/base:1", content, SETTINGS)
    files = read(tmp_path / "a")
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": "docker.io/testbed/base:1",
        "org.opencontainers.image.ref.name": "1",
    }
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    (layer,) = manifest["layers"]
    assert blob(files, layer) == content
    assert config["rootfs"]["diff_ids"] == [layer["digest"]], "the layer is not compressed"
    assert config["config"] == {
        "Env": ["A=b", "C=d"],
        "Entrypoint": ["/x"],
        "Cmd": ["y"],
        "WorkingDir": "/",
    }


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        archive.write(tmp_path / name, "x:1", archive.layer(rootfs.entries()), SETTINGS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("reference", "full"),
    [
        ("testbed/base:1", "docker.io/testbed/base:1"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("registry.k8s.io/pause:3.10.2", "registry.k8s.io/pause:3.10.2"),
        ("localhost/a:1", "localhost/a:1"),
        ("host:5000/a:1", "host:5000/a:1"),
    ],
)
def test_names_as_containerd_keeps_them(reference: str, full: str) -> None:
    assert archive.full_name(reference) == full


def test_the_root_belongs_to_root_and_is_nearly_empty() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive.layer(rootfs.entries()))) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert len(members) == len(rootfs.entries()), "no name twice"
    for member in members.values():
        assert (member.uid, member.gid, member.mtime) == (0, 0, 0)
        parent = member.name.rpartition("/")[0]
        assert not parent or members[parent].isdir(), f"{member.name} comes with its folder"
    assert members["lib64"].linkname == "usr/lib64", "where every program's loader is"
    assert members["tmp"].mode == 0o1777
    assert "home" not in members
    # Files that the plugin mounts must not hide in folders that are themselves bound.
    assert members["usr/local/vgpu"].isdir()
    order = list(members)
    for name in order:
        parent = name.rpartition("/")[0]
        assert not parent or order.index(parent) < order.index(name)


def test_only_folders_that_the_host_has_are_lent(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/share").touch()
    (bind,) = rootfs.lent(tmp_path)
    assert (bind.source, bind.destination) == (tmp_path / "usr/bin", "/usr/bin")


def test_what_is_lent_shows_nothing_private() -> None:
    for bind in rootfs.lent():
        assert bind.destination.startswith(("/usr/", "/etc/"))
        assert not bind.destination.startswith("/usr/local")
    assert "/usr/lib" in {bind.destination for bind in rootfs.lent()}


def test_programs_of_the_environment_come_first() -> None:
    assert rootfs.env("stack")["PATH"].startswith("/opt/testbed/stack/bin:")
    assert "testbed" not in rootfs.env()["PATH"]
    assert rootfs.env()["HOME"] == "/tmp"
