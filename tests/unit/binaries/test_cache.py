"""Entries of the cache are whole or absent, and made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.lab import cache
from testbed.lab.cluster.protocol import Step
from testbed.lab.progress import QuietProgress

QUIET = QuietProgress()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vgpu-testbed"


class Maker:
    """Makes the same small entry and counts how often."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.error = error

    def __call__(self, folder: Path, step: Step) -> None:
        del step
        self.count += 1
        (folder / "bin").mkdir(mode=0o700)
        (folder / "bin/program").write_text("#!/bin/sh\n")
        (folder / "bin/program").chmod(0o700)
        (folder / "bin/link").symlink_to("program")
        if self.error:
            raise self.error


def obtain(make: Maker, key: str = "k") -> Path:
    return cache.obtain("things", key, make, QUIET, "make it")


def test_an_entry_is_made_once(home: Path) -> None:
    make = Maker()
    first, second = obtain(make), obtain(make)
    assert first == second == home / "things/k"
    assert make.count == 1
    assert cache.find("things", "k") == first
    assert (first / "bin/link").read_text() == "#!/bin/sh\n"


def test_entries_are_readable_by_every_user(home: Path) -> None:
    folder = obtain(Maker())
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "bin").stat().st_mode & 0o777 == 0o755
    assert (folder / "bin/program").stat().st_mode & 0o055 == 0o055


def test_a_failed_making_leaves_nothing(home: Path) -> None:
    with pytest.raises(ValueError, match="broken"):
        obtain(Maker(ValueError("broken")))
    assert cache.find("things", "k") is None
    assert [path.name for path in (home / "things").iterdir()] == [".k.lock"]
    assert obtain(Maker())


@pytest.mark.parametrize("damage", ["cut", "remove", "add", "list", "half"])
def test_damaged_entries_are_made_anew(damage: str) -> None:
    make = Maker()
    folder = obtain(make)
    program = folder / "bin/program"
    if damage == "cut":
        program.write_text("")
    elif damage == "remove":
        program.unlink()
    elif damage == "add":
        (folder / "other").touch()
    elif damage == "list":
        (folder / ".entry.json").unlink()
    else:
        (folder / ".entry.json").write_text('{"bin/pro')
    assert cache.find("things", "k") is None
    assert obtain(make) == folder
    assert make.count == 2
    assert program.read_text() == "#!/bin/sh\n"
    assert not (folder / "other").exists()


def test_read_only_folders_can_be_replaced() -> None:
    make = Maker()
    folder = obtain(make)
    (folder / ".entry.json").unlink()
    (folder / "bin").chmod(0o500)
    assert obtain(make) == folder


def test_two_processes_make_it_once(home: Path, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from testbed.lab import cache
from testbed.lab.progress import QuietProgress
gate, count = Path(sys.argv[1]), Path(sys.argv[2])
def make(folder, step):
    with count.open("a") as file:
        file.write("x")
    with gate.open():  # until the test has started both
        pass
    (folder / "done").touch()
print(cache.obtain("things", "k", make, QuietProgress(), "make it"), flush=True)
"""
    gate, count = tmp_path / "gate", tmp_path / "count"
    os.mkfifo(gate)
    command = [sys.executable, "-c", script, str(gate), str(count)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        with gate.open("w"):
            pass  # opening waits until one of them is inside ``make``
        answers = {run.communicate(timeout=120)[0].strip() for run in runs}
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert answers == {str(home / "things/k")}
    assert count.read_text() == "x"


def test_old_entries_go_when_a_new_one_is_made(home: Path) -> None:
    old, used = obtain(Maker(), "old"), obtain(Maker(), "used")
    for folder in (old, used):
        os.utime(folder / ".entry.json", (1, 1))
    assert cache.find("things", "used")  # counts as use
    obtain(Maker(), "new")
    assert {path.name for path in (home / "things").iterdir() if path.is_dir()} == {"used", "new"}


def test_keys_tell_parts_apart() -> None:
    assert cache.key_of("ab", "c") != cache.key_of("a", "bc")
    assert cache.key_of("a") == cache.key_of(b"a")


def test_keys_of_files_see_name_content_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "a"
    keys = []
    for content, mode in (("x", 0o644), ("y", 0o644), ("y", 0o755)):
        file.write_text(content)
        file.chmod(mode)
        keys.append(cache.key_of_files(tmp_path, [file]))
    file = file.rename(tmp_path / "b")
    keys.append(cache.key_of_files(tmp_path, [file]))
    assert len(set(keys)) == 4


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/nobody")
    assert cache.root() == Path("/nobody/.cache/vgpu-testbed")


def test_a_cache_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(TestbedError, match="cannot write the cache folder") as caught:
        obtain(Maker())
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_the_list_names_every_file() -> None:
    folder = obtain(Maker())
    listed = json.loads((folder / ".entry.json").read_text())
    assert listed == {"bin/program": 10, "bin/link": 7}


def test_what_a_killed_maker_left_goes(home: Path) -> None:
    for name in (".k.abc123", ".other.abc123"):
        (home / "things" / name / "bin").mkdir(parents=True)
        (home / "things" / name / "bin/half").touch()
    obtain(Maker())
    left = sorted(path.name for path in (home / "things").iterdir() if path.is_dir())
    # Another key's may be in the making at this moment.
    assert left == [".other.abc123", "k"]
