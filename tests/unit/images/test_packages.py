"""How packages are installed: the same request by uv and by pip."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import MissingTool
from testbed.lab import command, packages

OPTIONS = ["--no-deps", "--constraint", Path("/c")]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    made: list[list[str]] = []

    def run(arguments: Sequence[str | Path], **_: Any) -> str:
        made.append([str(a) for a in arguments])
        return ""

    monkeypatch.setattr(command, "run", run)
    return made


def install(**where: Path) -> None:
    packages.install(["a==1"], what="x", tell=lambda _: None, options=OPTIONS, **where)


def test_uv_beside_the_interpreter_is_preferred(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uv").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    install(python=Path("/e/bin/python3"))
    rest = ["--python", "/e/bin/python3", "--no-deps", "--constraint", "/c", "a==1"]
    assert calls == [[str(tmp_path / "uv"), "pip", "install", *rest]]


def test_pip_takes_the_interpreter_before_its_command(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_uv", lambda: None)
    install(python=Path("/e/bin/python3"))
    install(target=Path("/t"))
    start = [sys.executable, "-m", "pip"]
    end = ["--no-deps", "--constraint", "/c", "a==1"]
    quiet = "--disable-pip-version-check"
    assert calls == [
        [*start, "--python", "/e/bin/python3", "install", quiet, *end],
        [*start, "install", quiet, "--target", "/t", *end],
    ]


def test_with_neither_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_uv", lambda: None)
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    with pytest.raises(MissingTool) as caught:
        install()
    assert "ensurepip" in caught.value.hint
