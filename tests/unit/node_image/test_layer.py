"""Layers and archives: what docker and podman read, always the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.lab.images.node import packages
from testbed.lab.images.node.layer import MOMENT, Layer, merged, tree, write_archive


def package(path: Path, files: dict[str, bytes | str], depends: str = "") -> Path:
    """Make a Debian package: bytes are files, texts are targets of links."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("not a Debian system")
    root = path.with_suffix("")
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {path.stem.partition('_')[0]}\nVersion: 1\nArchitecture: all\n"
        + (f"Depends: {depends}\n" if depends else "")
        + "Maintainer: x <x@example.org>\nDescription: x\n"
    )
    for name, content in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            target.symlink_to(content)
        else:
            target.write_bytes(content)
            target.chmod(0o755)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(root), str(path)],
        check=True,
        capture_output=True,
        timeout=240,
    )
    return path


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: info for info in tar.getmembers()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./bin/bash", "usr/bin/bash"),
        ("./lib64", "usr/lib64"),
        ("lib/systemd/systemd", "usr/lib/systemd/systemd"),
        ("./usr/sbin/", "usr/sbin"),
        ("./library/x", "library/x"),
        ("./", ""),
        (".", ""),
        ("./.hidden", ".hidden"),
    ],
)
def test_files_of_packages_follow_the_links_into_usr(name: str, expected: str) -> None:
    assert merged(name) == expected


def test_what_is_added_first_stays() -> None:
    out = io.BytesIO()
    layer = Layer(out)
    layer.merge_usr()
    layer.data("etc/a/b", b"first")
    layer.data("etc/a/b", b"second")
    layer.folder("etc/a", 0o700)
    layer.link("usr/bin/sh", "bash")
    layer.close()
    found = members(out.getvalue())
    links = ["bin", "lib", "lib64", "sbin"]
    assert list(found) == [*links, "etc", "etc/a", "etc/a/b", "usr", "usr/bin", "usr/bin/sh"]
    assert found["etc/a/b"].size == len(b"first")
    assert found["etc/a"].mode == 0o755
    assert {info.mtime for info in found.values()} == {MOMENT}
    assert layer.size == len(out.getvalue())
    assert layer.digest == f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}"


def test_a_package_is_taken_as_far_as_it_is_wanted(tmp_path: Path) -> None:
    file = package(
        tmp_path / "p.deb",
        {"bin/tool": b"program", "usr/share/doc/p/readme": b"x", "sbin/link": "../bin/tool"},
    )
    out = io.BytesIO()
    layer = Layer(out)
    with packages.contents(file) as content:
        layer.package(content, lambda name: not name.startswith("usr/share"))
    layer.close()
    found = members(out.getvalue())
    assert found["usr/bin/tool"].mode == 0o755
    assert found["usr/sbin/link"].linkname == "../bin/tool"
    assert not [name for name in found if "doc" in name or name.startswith(("bin", "sbin"))]


def test_links_into_usr_are_ours_where_a_package_has_them_too(tmp_path: Path) -> None:
    """As base-files of Debian 13: else /usr/lib64 would become a link to itself."""
    file = package(tmp_path / "p.deb", {"lib64": "usr/lib64", "usr/lib64/ld.so": b"loader"})
    out = io.BytesIO()
    layer = Layer(out)
    layer.merge_usr()
    with packages.contents(file) as content:
        layer.package(content, lambda name: True)
    layer.close()
    found = members(out.getvalue())
    assert found["lib64"].linkname == "usr/lib64"
    assert found["usr/lib64"].isdir()
    assert found["usr/lib64/ld.so"].isreg()


def test_a_file_that_is_no_package_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.deb"
    file.write_bytes(b"nothing")
    with pytest.raises(TestbedError, match=r"cannot read broken\.deb"), packages.contents(file):
        pass


def archive(path: Path) -> Path:
    def fill(layer: Layer) -> None:
        layer.data("odd", b"x" * 700)

    write_archive(path, "a/b:1", {"StopSignal": "SIGRTMIN+3"}, fill)
    return path


def test_an_archive_is_what_engines_load(tmp_path: Path) -> None:
    with tarfile.open(archive(tmp_path / "a.tar")) as tar:

        def read(name: str) -> bytes:
            source = tar.extractfile(name)
            assert source is not None
            return source.read()

        (manifest,) = json.loads(read("manifest.json"))
        assert manifest["RepoTags"] == ["a/b:1"]
        text = read(manifest["Config"])
        assert manifest["Config"] == f"{hashlib.sha256(text).hexdigest()}.json"
        (name,) = manifest["Layers"]
        layer = read(name)
        config = json.loads(text)
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    assert config["rootfs"]["diff_ids"] == [digest]
    assert config["config"] == {"StopSignal": "SIGRTMIN+3"}
    assert members(layer)["odd"].size == 700


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    assert archive(tmp_path / "a").read_bytes() == archive(tmp_path / "b").read_bytes()


def test_scripts_of_a_tree_can_be_run(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/run").write_text("#!/bin/sh\n")
    (tmp_path / "a").write_text("# text\n")
    (tmp_path / "a").chmod(0o700)
    (tmp_path / "empty").touch()
    found = [(name, mode) for name, _, mode in tree(tmp_path)]
    assert found == [("a", 0o644), ("b/run", 0o755), ("empty", 0o644)]
