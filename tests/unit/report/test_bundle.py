"""Bundles: only what there is, and nothing of an earlier failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from testbed.errors import ClusterError
from testbed.lab import bundle


class Logs:
    """A cluster that has these logs; an error where there are None."""

    def __init__(self, text: str | None = "") -> None:
        self._text = text

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
    assert [path.name for path in folder.iterdir()] == ["components"]


def test_what_could_not_be_had_is_named(tmp_path: Path) -> None:
    assert collect(tmp_path / "bundle", Logs(None)) == tmp_path / "bundle"
    assert "the node is away" in (tmp_path / "bundle/problems.txt").read_text()
