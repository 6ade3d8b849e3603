"""The environment of the sharing stack: this project's wheel with the ``stack`` extra.

Made in two steps, each its own entry of the cache: the packages that it needs change
seldom and take long, the project's own sources change often and take seconds.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
import tomllib
from pathlib import Path

import testbed
from testbed.errors import TestbedError
from testbed.lab import cache, packages
from testbed.lab.cluster.protocol import Progress, Step
from testbed.lab.images import venv
from testbed.native import build as native_build

PROJECT = "vgpu-testbed"
EXTRA = "stack"

#: Bumped when this module makes another environment from the same sources.
_RECIPE = "3"
_TOP_FILES = ("pyproject.toml", "LICENSE", "README.md")
#: Build products beside the sources: they would change the key without changing the wheel.
_PRODUCT_FOLDERS = ("__pycache__", "testbed/native/lib")
#: What the stack never imports; a change there makes no other image.
_NOT_OF_THE_STACK = ("testbed/lab", "testbed/card", "testbed/cli")


def prepare(progress: Progress) -> Path:
    """Return the folder of the environment.

    Raises:
        TestbedError: sources, compiler or package index are missing.
    """
    source = source_tree()
    python = venv.system_python()
    base_key = _base_key(source, python)
    key = _key(source, base_key)
    found = cache.find("stack", key)
    if found:
        return found
    base = _prepare_base(source, python, base_key, progress)

    def make(folder: Path, step: Step) -> None:
        _make(source, base, folder, python, step)

    return cache.obtain("stack", key, make, progress, "build the stack's environment")


def find() -> Path | None:
    """Return the folder of the environment if the cache has it.

    Raises:
        TestbedError: sources or interpreter are missing.
    """
    source = source_tree()
    return cache.find("stack", _key(source, _base_key(source, venv.system_python())))


def _key(source: Path, base_key: str) -> str:
    return cache.key_of(_RECIPE, base_key, cache.key_of_files(source, source_files(source)))


def source_tree() -> Path:
    """Return the folder with ``pyproject.toml`` that this package is run from.

    Raises:
        TestbedError: the package was installed from a wheel.
    """
    folder = Path(testbed.__file__).resolve().parents[1]
    file = folder / "pyproject.toml"
    if not file.is_file() or f'name = "{PROJECT}"' not in file.read_text():
        raise TestbedError(
            "cannot build the stack's environment",
            why=f"{folder} is no source tree of {PROJECT}",
            hint="run the testbed from a clone: git clone, then make e2e",
        )
    return folder


def source_files(source: Path) -> list[Path]:
    """Return the files that the wheel is built from."""
    found = [source / name for name in _TOP_FILES if (source / name).is_file()]
    for path in (source / "testbed").rglob("*"):
        name = path.relative_to(source).as_posix()
        product = any(f"/{folder}/" in f"/{name}" for folder in _PRODUCT_FOLDERS)
        foreign = name.startswith(tuple(f"{folder}/" for folder in _NOT_OF_THE_STACK))
        if path.is_file() and not product and not foreign:
            found.append(path)
    return found


def requirements(pyproject: Path, extra: str) -> list[str]:
    """Return what the project needs with an extra, its own nested extras resolved."""
    project = tomllib.loads(pyproject.read_text())["project"]
    found: list[str] = list(project["dependencies"])
    waiting = [extra]
    while waiting:
        for requirement in project["optional-dependencies"][waiting.pop()]:
            nested = re.fullmatch(rf"{PROJECT}\[([\w,\s-]+)\]", requirement)
            if nested:
                waiting += [name.strip() for name in nested[1].split(",")]
            elif requirement not in found:
                found.append(requirement)
    return sorted(found)


def _constraints(python: venv.SystemPython) -> list[str]:
    """Pins to the versions that this very run uses, so that both sides are the tested ones.

    None where the interpreters differ: a version may not exist for the other.
    """
    if python.minor != f"{sys.version_info[0]}.{sys.version_info[1]}":
        return []
    pins = {
        f"{_normal(found.name)}=={found.version}"
        for found in importlib.metadata.distributions()
        if found.name and _normal(found.name) != PROJECT
    }
    return sorted(pins)


def _base_key(source: Path, python: venv.SystemPython) -> str:
    wanted = requirements(source / "pyproject.toml", EXTRA)
    names = {_normal(re.split(r"[<>=!~;\[ ]", requirement)[0]) for requirement in wanted}
    pins = [pin for pin in _constraints(python) if pin.partition("==")[0] in names]
    return cache.key_of(_RECIPE, python.minor, *wanted, *pins)


def _prepare_base(source: Path, python: venv.SystemPython, key: str, progress: Progress) -> Path:
    def make(folder: Path, step: Step) -> None:
        interpreter = venv.create(folder, python)
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(_constraints(python)) + "\n")
        packages.install(
            requirements(source / "pyproject.toml", EXTRA),
            what="cannot install the packages that the stack needs",
            tell=step.update,
            python=interpreter,
            options=["--only-binary", ":all:", "--constraint", constraints],
        )
        constraints.unlink()
        venv.close(folder, step, folder / "lib")

    text = "install the packages that the stack needs"
    return cache.obtain("stack-base", key, make, progress, text)


def _make(source: Path, base: Path, folder: Path, python: venv.SystemPython, step: Step) -> None:
    scratch = folder / "scratch"
    tree = scratch / "tree"
    # A copy: building in the clone would leave folders there, and two builds would meet.
    for file in source_files(source):
        target = tree / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    # The C parts are built by themselves, kept part by part: a wheel would compile all anew.
    step.update("building the native libraries")
    native = native_build.build()
    wheel = packages.build_wheel(
        tree,
        scratch / "wheel",
        what="cannot build the project's wheel",
        tell=step.update,
        settings=["wheel.cmake=false"],
    )
    venv.copy(base, folder)
    packages.install(
        [wheel],
        what="cannot install the project's wheel",
        tell=step.update,
        python=folder / "bin/python3",
        options=["--no-deps"],
    )
    installed = venv.site_packages(folder, python) / "testbed"
    (installed / "native/lib").mkdir()
    for file in native.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, installed / "native/lib" / file.name)
    (folder / "bin" / "testbed").unlink(missing_ok=True)  # the command line is not in it
    shutil.rmtree(scratch)
    venv.close(folder, step, installed)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
