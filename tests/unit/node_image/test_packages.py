"""Which packages a node is made of, and how apt is asked for them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from testbed.errors import MissingTool, TestbedError
from testbed.lab.images.node import packages
from testbed.lab.progress import QuietProgress

from .test_layer import package

QUIET = QuietProgress()

#: Writes down how it was called; with lists of this machine it fails as often as it is told.
FAKE_APT = f"""#!{sys.executable}
import json, os, pathlib, sys
options = dict(word.split("=", 1) for word in sys.argv if "::" in word)
with open(os.environ["APT_CALLS"], "a") as file:
    print(json.dumps([sys.argv[1:], options]), file=file)
lists = options["Dir::State::lists"]
if lists == "/var/lib/apt/lists" and os.environ["APT_LISTS"] == "old":
    raise SystemExit("E: 404 Not Found")
if "install" in sys.argv:
    pathlib.Path(options["Dir::Cache::archives"], "x_1_all.deb").touch()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("APT_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("APT_LISTS", "new")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (folder / name).write_text(FAKE_APT)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "calls"


def read(calls: Path) -> list[list[str]]:
    found: list[list[str]] = []
    for line in calls.read_text().splitlines():
        argv, options = json.loads(line)
        own = options["Dir::State::lists"] != "/var/lib/apt/lists"
        verb = "update" if "update" in argv else "install"
        found.append([verb, "own lists" if own else "the machine's"])
        # Nothing of the machine is written, and nothing that it has is left out.
        for name in ("status", "extended_states"):
            assert options[f"Dir::State::{name}"].startswith(str(calls.parent))
        assert options["Dir::Cache::archives"].startswith(str(calls.parent))
        if verb == "install":
            assert "--download-only" in argv
            assert set(packages.WANTED) < set(argv)
    return found


def test_packages_are_downloaded_once(calls: Path) -> None:
    assert packages.find() is None
    folder = packages.fetch(QUIET)
    assert packages.fetch(QUIET) == folder == packages.find()
    assert [file.name for file in packages.files(folder)] == ["x_1_all.deb"]
    assert read(calls) == [["install", "the machine's"]]


def test_old_lists_are_read_anew_for_us_only(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APT_LISTS", "old")
    folder = packages.fetch(QUIET)
    assert read(calls)[1:] == [["update", "own lists"], ["install", "own lists"]]
    left = [path for path in folder.parent.iterdir() if not path.name.endswith(".lock")]
    assert left == [folder], "no state of apt is left"


def test_no_package_is_an_error(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = calls.parent / "bin/apt-get"
    program.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(TestbedError, match="cannot download the node's packages"):
        packages.fetch(QUIET)
    assert packages.find() is None


def test_a_machine_without_apt_is_told_what_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="cannot make a node image") as caught:
        packages.fetch(QUIET)
    assert "--provider process" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("libc6 (>= 2.36), libmnl0", [["libc6"], ["libmnl0"]]),
        ("usrmerge | usr-is-merged (>= 38~)", [["usrmerge", "usr-is-merged"]]),
        ("python3:any, x [amd64] <!nocheck>", [["python3"], ["x"]]),
        ("", []),
    ],
)
def test_dependencies(text: str, expected: list[list[str]]) -> None:
    assert packages.dependencies(text) == expected


def test_closure_ends_in_a_circle_and_at_what_is_not_there() -> None:
    depends = {"a": [["b"]], "b": [["a", "c"]], "c": [["gone"]], "d": []}
    asked: list[str] = []

    def ask(name: str) -> list[list[str]]:
        asked.append(name)
        return depends[name]

    assert packages.closure(["a", "unknown"], depends, ask) == {"a", "b", "c"}
    assert sorted(asked) == ["a", "b", "c"], "each once, and no other"


def test_needed_packages_are_found_by_their_names(tmp_path: Path) -> None:
    depends = "second (>= 1) | other, gone"
    first = package(tmp_path / "first_1_all.deb", {"usr/bin/a": b""}, depends)
    second = package(tmp_path / "second_1%3a2_all.deb", {"usr/bin/b": b""})
    package(tmp_path / "third_1_all.deb", {"usr/bin/c": b""})
    assert packages.needed(tmp_path, ["first", "unknown"]) == [first, second]


def test_a_broken_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "first_1_all.deb").write_bytes(b"nothing")
    with pytest.raises(TestbedError, match=r"cannot read first_1_all\.deb"):
        packages.needed(tmp_path, ["first"])
