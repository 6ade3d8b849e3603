"""Downloads are taken only with the published checksum."""

from __future__ import annotations

import hashlib
import http.client
import io
import tarfile
import threading
from pathlib import Path
from typing import cast

import pytest

from testbed.errors import TestbedError
from testbed.lab.binaries import official, versions
from testbed.lab.progress import QuietProgress

QUIET = QuietProgress()


class Response(io.BytesIO):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.headers = {"Content-Length": str(len(data))}


class Site:
    """The publishers, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        for release in official.releases():
            data = release.url.encode()
            if release.members:
                data = archive(release.members)
            self.files[release.url] = data
            digest = hashlib.sha256(data).hexdigest()
            name = release.url.rpartition("/")[2]
            if release.checksum_url.endswith(".sha256"):
                text = digest
            else:
                text = f"{'0' * 64}  other.tar.gz\n{digest}  {name}\n"
            self.files[release.checksum_url] = text.encode()

    def open(self, url: str, timeout_s: float) -> http.client.HTTPResponse:
        if url not in self.files:
            raise OSError(f"404: {url}")
        return cast("http.client.HTTPResponse", Response(self.files[url]))


def archive(members: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in (*members, "bin/unwanted"):
            data = name.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_every_program_is_downloaded(tmp_path: Path) -> None:
    official.download(tmp_path, QUIET, Site().open)
    assert {path.name for path in tmp_path.iterdir()} == set(versions.PROGRAMS)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o111, "programs can be run"
    assert (tmp_path / "ctr").read_text() == "bin/ctr"
    assert "kube-proxy" in (tmp_path / "kube-proxy").read_text()


def test_versions_are_in_the_addresses() -> None:
    text = " ".join(release.url for release in official.releases())
    for version in (versions.KUBERNETES, versions.ETCD, versions.CONTAINERD):
        assert version in text


@pytest.mark.parametrize("at", range(len(official.releases())))
def test_a_changed_file_is_refused(tmp_path: Path, at: int) -> None:
    site = Site()
    url = official.releases()[at].url
    site.files[url] += b"x"
    with pytest.raises(TestbedError, match="refused") as caught:
        official.download(tmp_path, QUIET, site.open)
    assert url in caught.value.what


@pytest.mark.parametrize("text", [b"", b"<html>", b"abc", b"1  other\n2  another\n", b"g\n" * 3])
def test_without_a_checksum_nothing_is_taken(tmp_path: Path, text: bytes) -> None:
    site = Site()
    site.files[official.releases()[-1].checksum_url] = text
    with pytest.raises(TestbedError, match="cannot verify"):
        official.download(tmp_path, QUIET, site.open)
    assert not (tmp_path / "containerd").exists()


def test_a_missing_member_is_an_error(tmp_path: Path) -> None:
    site = Site()
    release = official.releases()[-1]
    data = archive(("bin/ctr",))
    site.files[release.url] = data
    name = release.url.rpartition("/")[2]
    site.files[release.checksum_url] = f"{hashlib.sha256(data).hexdigest()}  {name}".encode()
    with pytest.raises(TestbedError, match="cannot unpack"):
        official.download(tmp_path, QUIET, site.open)


def test_a_broken_line_is_an_error(tmp_path: Path) -> None:
    site = Site()
    del site.files[official.releases()[2].url]
    with pytest.raises(TestbedError, match="cannot download"):
        official.download(tmp_path, QUIET, site.open)


def test_reachable_if_both_publishers_answer() -> None:
    site = Site()
    assert official.reachable(site.open)
    del site.files[official.releases()[-1].checksum_url]
    assert not official.reachable(site.open)


def test_a_silent_line_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(url: str, timeout_s: float) -> http.client.HTTPResponse:
        release.wait()
        raise OSError("late")

    assert official.GIVE_UP_S == 3.0
    monkeypatch.setattr(official, "GIVE_UP_S", 0.1)
    try:
        assert not official.reachable(hang)  # else it would wait for the line's release
    finally:
        release.set()
