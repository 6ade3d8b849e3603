"""What the stack's environment is made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.lab.images import stack, venv

PYPROJECT = """
[project]
name = "vgpu-testbed"
dependencies = ["msgspec>=1"]
[project.optional-dependencies]
webhook = ["aiohttp>=3"]
plugin = ["grpcio>=1", "aiohttp>=3"]
both = ["vgpu-testbed[webhook, plugin]", "extra"]
lab = ["jupyter"]
"""


def test_nested_extras_are_resolved(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(PYPROJECT)
    assert stack.requirements(file, "both") == ["aiohttp>=3", "extra", "grpcio>=1", "msgspec>=1"]


def test_the_stack_alone_installs_small() -> None:
    wanted = stack.requirements(stack.source_tree() / "pyproject.toml", stack.EXTRA)
    names = " ".join(wanted)
    for name in ("aiohttp", "kubernetes", "grpcio", "nvidia-ml-py", "msgspec"):
        assert name in names
    for name in ("papermill", "ipykernel", "matplotlib", "typer", "torch"):
        assert name not in names


def test_sources_without_products(tmp_path: Path) -> None:
    wanted = ["pyproject.toml", "LICENSE", "testbed/a.py", "testbed/native/x.c", "testbed/m/go.mod"]
    products = [
        *("testbed/__pycache__/a.pyc", "testbed/native/lib/libcuda.so.1"),
        *("tests/test_a.py", "build/x", ".venv/y", "uv.lock"),
        *("testbed/lab/a.py", "testbed/card/b.py", "testbed/cli/c.py"),
    ]
    for name in (*wanted, *products):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = stack.source_files(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in found} == set(wanted)


def test_outside_a_clone_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "testbed").mkdir()
    monkeypatch.setattr("testbed.__file__", str(tmp_path / "testbed/__init__.py"))
    with pytest.raises(TestbedError, match="no source tree") as caught:
        stack.source_tree()
    assert "clone" in caught.value.hint


def test_pins_only_for_the_same_interpreter() -> None:
    import sys

    same = venv.SystemPython(version=(sys.version_info[0], sys.version_info[1], 99))
    pins = stack._constraints(same)
    assert any(pin.startswith("aiohttp==") for pin in pins)
    assert not any(pin.startswith("vgpu-testbed") for pin in pins)
    assert stack._constraints(venv.SystemPython(version=(3, 99, 0))) == []
