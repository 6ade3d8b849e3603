"""The control plane's images in pieces: put together they are one OCI layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.binaries import versions
from testbed.lab.images.node import control_plane
from testbed.lab.images.node.control_plane import SERVERS, Programs
from testbed.lab.images.node.layer import Layer


def tools(layer: Layer) -> None:
    layer.data("usr/sbin/nft", b"nft", 0o755)


def together(pieces: list[bytes | str], programs: Programs) -> dict[str, bytes]:
    """Put an archive together as the node does; return its files."""
    whole = b"".join(
        piece if isinstance(piece, bytes) else programs.files[piece].read_bytes()
        for piece in pieces
    )
    assert len(whole) % tarfile.BLOCKSIZE == 0
    found = {}
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        for info in tar:
            source = tar.extractfile(info)
            found[info.name] = source.read() if source else b""
    return found


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    data = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
    assert len(data) == descriptor["size"]
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == descriptor["digest"]
    return data


@pytest.fixture(params=["one binary", "several"])
def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Programs:
    if request.param == "several":  # official releases
        for number, name in enumerate(SERVERS):
            (tmp_path / name).write_bytes(b"p" * (511 + number))
    else:
        (tmp_path / "kube-multi").write_bytes(b"m" * 1025)
        for name in SERVERS:
            (tmp_path / name).symlink_to("kube-multi")
    return Programs.of({name: tmp_path / name for name in SERVERS})


def test_every_image_is_whole(programs: Programs) -> None:
    pieces = control_plane.pieces(programs, tools, "registry.k8s.io/pause:3", b"pause")
    assert [piece for piece in pieces if isinstance(piece, str)] == list(programs.files)
    files = together(pieces, programs)
    index = json.loads(files["index.json"])
    images = {
        entry["annotations"]["io.containerd.image.name"]: json.loads(blob(files, entry))
        for entry in index["manifests"]
    }
    assert list(images) == [*control_plane.references(), "registry.k8s.io/pause:3"]
    for reference, manifest in images.items():
        config = json.loads(blob(files, manifest["config"]))
        layers = [blob(files, layer) for layer in manifest["layers"]]
        assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
        (entrypoint,) = config["config"]["Entrypoint"]
        with tarfile.open(fileobj=io.BytesIO(layers[-1])) as tar:
            entry = tar.getmember(entrypoint.lstrip("/"))
            if entry.issym():
                entry = tar.getmember(f"usr/local/bin/{entry.linkname}")
            assert entry.mode & 0o111
            source = tar.extractfile(entry)
            assert source is not None
            name = reference.rpartition("/")[2].partition(":")[0]
            expected = (
                b"pause"
                if name == "pause"
                else programs.files[programs.links.get(name, name)].read_bytes()
            )
            assert source.read() == expected
    shared = {json.dumps(images[reference]["layers"]) for reference in control_plane.references()}
    assert len(shared) == 1, "what is stored once"


def test_references_are_what_kubeadm_asks_for() -> None:
    assert f"registry.k8s.io/kube-apiserver:v{versions.KUBERNETES}" in control_plane.references()
    major_minor = versions.ETCD.rpartition(".")[0]
    assert f"registry.k8s.io/etcd:{control_plane.ETCD_TAG}" in control_plane.references()
    assert control_plane.ETCD_TAG.startswith(f"{major_minor}.")
