"""The front's configuration file: lines that the C side reads (tests/native/ocifront)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.lab import images
from testbed.lab.images import Bind, Image

BASE = Image(
    reference="testbed/base:1",
    archive=Path("/home/u/.cache/vgpu-testbed/images/a/image.tar"),
    binds=(
        Bind(source=Path("/usr/bin"), destination="/usr/bin"),
        Bind(source=Path("/home/u/.cache/vgpu-testbed/stack/b"), destination="/opt/testbed/stack"),
        Bind(
            source=Path("/home/u/.cache/vgpu-testbed/ld-cache/c/ld.so.cache"),
            destination="/etc/ld.so.cache",
        ),
    ),
)
PAUSE = Image(reference="registry.k8s.io/pause:3", archive=Path("/a/image.tar"))


def test_golden() -> None:
    text = images.configuration(
        [PAUSE, BASE],
        runtime="/usr/sbin/runc",
        relocate=lambda path: str(path).replace("/home/u/.cache/vgpu-testbed", "/cache"),
    )
    assert text == (
        "runtime /usr/sbin/runc\n"
        "argument --rootless=true\n"
        "cgroups drop\n"
        "oom-score drop\n"
        "image testbed/base:1\n"
        "bind /usr/bin /usr/bin\n"
        "bind /cache/stack/b /opt/testbed/stack\n"
        "bind /cache/ld-cache/c/ld.so.cache /etc/ld.so.cache\n"
    )


def test_a_node_with_cgroups() -> None:
    text = images.configuration(
        [], runtime="/r", arguments=(), drop_cgroups=False, drop_oom_score=False
    )
    assert text == "runtime /r\ncgroups keep\noom-score clamp\n"


@pytest.mark.parametrize("path", ["/home/a b/x", "/a\nb", ""])
def test_paths_that_the_file_cannot_hold_are_refused(path: str) -> None:
    with pytest.raises(InputError) as caught:
        images.configuration([BASE], runtime="/r", relocate=lambda _: path)
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_folders_outside_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "vgpu-testbed"
    environment, libraries = home / "stack/b", home / "ld-cache/c/ld.so.cache"
    environment.mkdir(parents=True)
    libraries.parent.mkdir(parents=True)
    libraries.touch()
    sources = (Path("/usr/bin"), environment, libraries, environment)
    image = Image(
        reference="a/b:1",
        archive=home / "images/a/image.tar",
        binds=tuple(Bind(source=source, destination="/x") for source in sources),
    )
    assert images.folders([image]) == (home / "images/a", environment, libraries.parent)


def test_images_are_found_by_name() -> None:
    assert images.find((PAUSE, BASE), "testbed/base") is BASE
    assert images.find((PAUSE, BASE), "registry.k8s.io/pause") is PAUSE
    with pytest.raises(KeyError):
        images.find((PAUSE,), "testbed/base")
