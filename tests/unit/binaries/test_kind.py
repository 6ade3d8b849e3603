"""kind and crictl: the cache, else a download, else a build of their modules."""

from __future__ import annotations

import hashlib
import http.client
import io
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

import pytest

from testbed.errors import TestbedError
from testbed.lab.binaries import build, kind, official, versions
from testbed.lab.cluster.protocol import Step
from testbed.lab.progress import QuietProgress

from .sources import Sources

QUIET = QuietProgress()
Both = Callable[[], tuple[Path, Path]]


class KindSources(Sources):
    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        super().__init__(monkeypatch, cache)
        monkeypatch.setattr(official, "reachable", self.reachable)
        monkeypatch.setattr(official, "download", self.download)
        monkeypatch.setattr(build, "build_programs", self.build)

    def reachable(self, wanted: Sequence[official.Release] = ()) -> bool:
        return self.route

    def download(self, folder: Path, step: Step, wanted: Sequence[official.Release] = ()) -> None:
        (release,) = wanted
        name = release.program or release.members[0]
        self.program(folder / name)
        self.came(name)

    def build(
        self, programs: Iterable[build.Program], folder: Path, scratch: Path, step: Step
    ) -> None:
        (scratch / "cache").touch()
        for program in programs:
            self.asked.append(f"build {program.name}")
            self.program(folder / program.name)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> KindSources:
    return KindSources(monkeypatch, tmp_path)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Both:
    """Asks for kind, then for crictl, as a first ``up`` does."""

    class Cluster:
        def path(self, name: str) -> Path:
            return tmp_path / name

    monkeypatch.setattr(kind.binaries, "ensure", lambda progress: Cluster())
    return lambda: (kind.ensure(QUIET).kind, kind.ensure_crictl(QUIET))


def test_a_download_comes_first_and_once(sources: Sources) -> None:
    first = kind.ensure_crictl(QUIET)
    assert kind.ensure_crictl(QUIET) == first
    assert (first.name, sources.asked) == ("crictl", ["download crictl"])


def test_without_a_route_both_are_built_at_once(sources: Sources, both: Both) -> None:
    sources.route = False
    path, crictl = both()
    assert sources.asked == ["build kind", "build crictl"]
    assert (path.name, crictl) == ("kind", path.with_name("crictl"))
    assert both() == (kind.find(), kind.find_crictl()) == (path, crictl)
    assert sources.asked == ["build kind", "build crictl"]
    folders = [entry for entry in path.parents[1].iterdir() if entry.is_dir()]
    assert folders == [path.parent], "no scratch is left"


def test_a_refused_download_is_built_instead(sources: Sources) -> None:
    sources.broken = True
    kind.ensure_crictl(QUIET)
    assert sources.asked == ["download crictl", "build kind", "build crictl"]


def test_one_that_was_downloaded_stays(sources: Sources) -> None:
    first = kind.ensure_crictl(QUIET)
    sources.route = False
    assert kind.ensure_crictl(QUIET) == first
    assert sources.asked == ["download crictl"]


def test_another_version_is_refused(sources: Sources) -> None:
    sources.route = False
    sources.version = "0.1.0"
    with pytest.raises(TestbedError, match=r"it is not version .*v0\.1\.0"):
        kind.ensure_crictl(QUIET)


def test_kind_comes_with_the_clusters_kubectl(sources: Sources, both: Both, tmp_path: Path) -> None:
    assert kind.find() is None
    both()
    tools = kind.ensure(QUIET)
    assert tools.kubectl == tmp_path / "kubectl"
    assert tools.version == f"v{versions.KIND}"
    assert kind.find() == tools.kind
    assert sources.asked == ["download kind", "download crictl"]


def test_modules_name_the_versions() -> None:
    for module, line in (
        ("kind", f"sigs.k8s.io/kind v{versions.KIND}\n"),
        ("crictl", f"sigs.k8s.io/cri-tools v{versions.CRICTL}\n"),
    ):
        assert line in (versions.MODULES / module / "go.mod").read_text()


def served(files: dict[str, bytes]) -> official.Open:
    def open_(url: str, timeout_s: float) -> http.client.HTTPResponse:
        if url not in files:
            raise OSError(f"404: {url}")
        response = io.BytesIO(files[url])
        response.headers = {}  # type: ignore[attr-defined]
        return cast("http.client.HTTPResponse", response)

    return open_


def test_downloaded_kind_has_its_own_name(tmp_path: Path) -> None:
    release = official.kind_release()
    assert f"v{versions.KIND}/" in release.url
    digest = hashlib.sha256(b"program").hexdigest()
    site = served(
        {release.url: b"program", release.checksum_url: f"{digest}  kind-linux-amd64\n".encode()}
    )
    official.download(tmp_path, QUIET, site, wanted=[release])
    assert [path.name for path in tmp_path.iterdir()] == ["kind"]
    assert (tmp_path / "kind").stat().st_mode & 0o111


def test_downloaded_crictl_leaves_its_archive(tmp_path: Path) -> None:
    release = official.crictl_release()
    assert versions.CRICTL in release.url
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("crictl"), io.BytesIO())
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    site = served({release.url: data, release.checksum_url: digest.encode()})
    assert official.reachable(site, wanted=[release])
    official.download(tmp_path, QUIET, site, wanted=[release])
    assert [path.name for path in tmp_path.iterdir()] == ["crictl"]
