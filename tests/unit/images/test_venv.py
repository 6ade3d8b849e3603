"""Environments are closed: nothing of the host but /usr, and no link out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.errors import MissingTool, TestbedError
from testbed.lab.images import venv
from testbed.lab.progress import QuietProgress

QUIET = QuietProgress()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    folder.mkdir()
    venv.create(folder, venv.system_python())
    return folder


def python(folder: Path, code: str) -> str:
    return subprocess.run(
        [str(folder / "bin/python3"), "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin"},
    ).stdout.strip()


def test_it_sees_its_own_packages_and_no_others(environment: Path) -> None:
    packages = venv.site_packages(environment, venv.system_python())
    (packages / "mine.py").write_text("x = 1\n")
    assert python(environment, "import mine; print(mine.x)") == "1"
    path = python(environment, "import sys; print(*sys.path, sep='\\n')").splitlines()
    assert str(packages) in path
    assert not [entry for entry in path if "dist-packages" in entry], "no package of the host"


def test_it_works_at_another_path(environment: Path, tmp_path: Path) -> None:
    packages = venv.site_packages(environment, venv.system_python())
    (packages / "mine.py").write_text("x = 1\n")
    moved = environment.rename(tmp_path / "moved")
    assert python(moved, "import mine; print(mine.__file__)").startswith(str(moved))


def test_closing_compiles_and_drops_scripts(environment: Path) -> None:
    packages = venv.site_packages(environment, venv.system_python())
    (packages / "mine.py").write_text("x = 1\n")
    (packages / "template.py").write_text("print 'of another Python'\n")
    (environment / "bin/tool").write_text(f"#!{environment}/bin/python3\n")
    (environment / ".lock").touch()
    venv.close(environment, QUIET, environment / "lib")
    assert sorted(path.name for path in (environment / "bin").iterdir()) == ["python", "python3"]
    assert not (environment / ".lock").exists(), "the installer's, writable for all"
    (compiled,) = packages.glob("__pycache__/mine.*.pyc")
    flags = compiled.read_bytes()[4:8]
    assert flags == b"\x01\0\0\0", "valid whatever the source's time: a bind keeps none"


@pytest.mark.parametrize("target", ["/etc/passwd", "/nowhere", "../../outside", "/usr/local/bin"])
def test_links_that_lead_out_are_refused(environment: Path, target: str) -> None:
    (environment.parent / "outside").touch()
    (environment / "lib/link").symlink_to(target)
    assert venv.open_links(environment) == [Path("lib/link")]
    with pytest.raises(TestbedError, match="lib/link"):
        venv.close(environment, QUIET, environment / "lib")


def test_absolute_links_into_itself_are_refused(environment: Path) -> None:
    # They would dangle where the environment is bound.
    (environment / "lib/link").symlink_to(environment / "pyvenv.cfg")
    assert venv.open_links(environment) == [Path("lib/link")]


def test_links_inside_and_to_the_system_are_good(environment: Path) -> None:
    (environment / "lib/link").symlink_to("../pyvenv.cfg")
    assert venv.open_links(environment) == []


def test_a_copy_is_whole_and_costs_no_disk(environment: Path, tmp_path: Path) -> None:
    (environment / "lib/file").write_text("x")
    (environment / "bin/extra").symlink_to("python3")
    target = tmp_path / "copy"
    target.mkdir()
    venv.copy(environment, target)

    def names(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}

    assert names(target) == names(environment)
    assert (target / "lib/file").stat().st_ino == (environment / "lib/file").stat().st_ino
    assert (target / "bin/extra").readlink() == Path("python3")


@pytest.mark.parametrize("answer", ["Python 3.10.9", "nonsense"])
def test_an_interpreter_that_will_not_do_is_named(tmp_path: Path, answer: str) -> None:
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\necho {answer}\n")
    program.chmod(0o755)
    with pytest.raises(MissingTool, match=answer.split()[-1]) as caught:
        venv.system_python(program)
    assert "3.11" in caught.value.hint


def test_a_missing_interpreter_is_a_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(MissingTool):
        venv.system_python(tmp_path / "none")
