"""The order: cache, official downloads, build."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.lab import binaries
from testbed.lab.binaries import build, official, versions
from testbed.lab.cluster.protocol import Step
from testbed.lab.progress import QuietProgress

from .sources import Sources

QUIET = QuietProgress()


class ClusterSources(Sources):
    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        super().__init__(monkeypatch, cache)
        monkeypatch.setattr(official, "reachable", lambda: self.route)
        monkeypatch.setattr(official, "download", self.download)
        monkeypatch.setattr(build, "build", self.build)

    def download(self, folder: Path, step: Step) -> None:
        self.fill(folder)
        self.came("")

    def build(self, folder: Path, scratch: Path, step: Step) -> None:
        self.asked.append("build")
        (scratch / "cache").touch()
        self.fill(folder)

    def fill(self, folder: Path) -> None:
        for name in versions.PROGRAMS:
            self.program(folder / name)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClusterSources:
    return ClusterSources(monkeypatch, tmp_path)


def test_downloads_come_first_and_once(sources: Sources) -> None:
    first = binaries.ensure(QUIET)
    assert binaries.ensure(QUIET) == first
    assert sources.asked == ["download"]
    assert first.path("kubectl").is_file()
    assert binaries.find("kubectl") == first.path("kubectl")


def test_without_a_route_they_are_built(sources: Sources, tmp_path: Path) -> None:
    sources.route = False
    folder = binaries.ensure(QUIET).folder
    assert sources.asked == ["build"]
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder], "no scratch"


def test_a_refused_download_is_built_instead(sources: Sources) -> None:
    sources.broken = True
    binaries.ensure(QUIET)
    assert sources.asked == ["download", "build"]


def test_programs_of_another_version_are_refused(sources: Sources) -> None:
    sources.route = False
    sources.version = "1.0.0"
    with pytest.raises(TestbedError, match=r"it is not version .*v1\.0\.0"):
        binaries.ensure(QUIET)
    assert binaries.cached() is None
    assert binaries.find("kubectl") is None


def test_other_sources_make_another_entry(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = binaries.ensure(QUIET).folder
    monkeypatch.setattr(versions, "CONTAINERD_TAGS", "other")
    assert binaries.ensure(QUIET).folder != first
    assert sources.asked == ["download", "download"]
