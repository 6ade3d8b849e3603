"""The Dockerfiles: read as BuildKit reads them, and of the versions that everything else has."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from testbed.lab.binaries import versions

from .linter import built

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))
MODULE = Path(__file__).parent / "dockerlint"


@pytest.fixture(scope="session")
def dockerlint() -> Path:
    """BuildKit's parser and linter."""
    return built(MODULE)


def lint(program: Path, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, file], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.timeout(700)  # the linter may have to be built
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_linter_finds_nothing(dockerlint, file):
    done = lint(dockerlint, file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("FROM a as b\n", "FromAsCasing"),
        ("FROM a\nRUNN b\n", "unknown instruction"),
        ("FROM a\nMAINTAINER me\n", "MaintainerDeprecated"),
    ],
)
def test_the_linter_finds_something_where_there_is_something(dockerlint, tmp_path, text, what):
    (tmp_path / "Dockerfile").write_text(text)
    done = lint(dockerlint, tmp_path / "Dockerfile")
    assert done.returncode == 1 and re.search(what, done.stdout)


def literal_pins(text: str) -> list[str]:
    """Return packages that are pinned in the file itself instead of by a lock file."""
    return re.findall(r"[\w-]+==[\w.]+", text)


def test_versions_are_those_of_the_lock_files():
    kubernetes = (ROOT / "docker/Dockerfile.kube-scheduler").read_text()
    assert re.findall(r"^FROM \S+:v(\S+)$", kubernetes, re.MULTILINE) == [versions.KUBERNETES]
    for name, lock, packages in (
        ("stack", "requirements.lock", "[a-z0-9]"),
        ("pytorch", "testbed/lab/images/pytorch.lock", "(numpy|torch)=="),
    ):
        text = (ROOT / f"docker/Dockerfile.{name}").read_text()
        assert f"COPY {lock} " in text and not literal_pins(text)
        # What the file's own sed makes of the lock.
        ((options, script),) = re.findall(r"sed (-nE?) '(.*?)'", text)
        pins = subprocess.run(
            ["sed", options, script, ROOT / lock], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert pins == [
            line.removesuffix("\\").rstrip()
            for line in (ROOT / lock).read_text().splitlines()
            if re.match(packages, line)
        ]
        assert all(re.match(r"[\w.\[\],-]+==\S+( ; .*)?$", pin) for pin in pins)
        assert len(pins) >= 2
    assert literal_pins("RUN pip install torch==2.0") == ["torch==2.0"]


def test_the_interpreter_is_one_that_the_project_takes():
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for file in FILES:
        for version in re.findall(r"^ARG PYTHON=(\d+\.\d+)-", file.read_text(), re.MULTILINE):
            assert f">={version}" == floor, file


def test_what_is_copied_is_in_the_build_context():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    shown = {line[1:] for line in ignored if line.startswith("!")}
    for file in FILES:
        for line in re.findall(r"^COPY (?!--from)(.*)$", file.read_text(), re.MULTILINE):
            for source in line.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source.partition("/")[0] in shown, source
    # Nothing of a clone that is large or private comes along.
    assert not {".git", ".venv", "runs", "build"} & shown


def test_every_file_is_in_the_readme():
    readme = (ROOT / "docker/README.md").read_text()
    assert len(FILES) == 3
    for file in FILES:
        assert f"`{file.name}`" in readme and f"--file docker/{file.name} " in file.read_text()
