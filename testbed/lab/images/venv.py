"""Closed Python environments: bound into containers at another path than they are made at.

Such an environment has the interpreter /usr/bin/python3, which containers see, and
site-packages; no package of the host and no link that leads anywhere but /usr.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingTool, TestbedError
from testbed.lab import command
from testbed.lab.cluster.protocol import Step

PYTHON = Path("/usr/bin/python3")
OLDEST = (3, 11)
_START_S = 60.0
_COMPILE_S = 600.0
#: Packages may carry files of other Pythons' syntax: what cannot be compiled stays source.
_COMPILE = (
    "import compileall, py_compile, sys;"
    "compileall.compile_dir(sys.argv[1], quiet=2, workers=0,"
    "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPython:
    """The interpreter that containers see."""

    version: tuple[int, int, int]

    @property
    def minor(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"


def system_python(path: Path = PYTHON) -> SystemPython:
    """Return what /usr/bin/python3 is.

    Raises:
        MissingTool: it is missing or too old.
    """
    oldest = ".".join(map(str, OLDEST))
    hint = f"install Python {oldest} or newer as {path}"
    what = f"cannot make environments for containers with {path}"
    text = command.run([path, "-IS", "--version"], what=what, timeout_s=_START_S, hint=hint)
    match = re.search(r"Python (\d+)\.(\d+)\.(\d+)", text)
    if not match:
        raise MissingTool(what, why=f"it says {text.strip()!r}", hint=hint)
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version < OLDEST:
        raise MissingTool(what, why=f"it is {text.strip()}, {oldest} is needed", hint=hint)
    return SystemPython(version=version)


def create(folder: Path, python: SystemPython) -> Path:
    """Make an empty environment in an existing folder; return its interpreter."""
    (folder / "bin").mkdir()
    site_packages(folder, python).mkdir(parents=True)
    (folder / "lib64").symlink_to("lib")
    (folder / "bin/python3").symlink_to(PYTHON)
    (folder / "bin/python").symlink_to("python3")
    (folder / "pyvenv.cfg").write_text(
        f"home = {PYTHON.parent}\n"
        "include-system-site-packages = false\n"
        f"version = {'.'.join(map(str, python.version))}\n"
    )
    return folder / "bin/python3"


def site_packages(folder: Path, python: SystemPython) -> Path:
    return folder / f"lib/python{python.minor}/site-packages"


def copy(source: Path, target: Path) -> None:
    """Copy an environment into an empty folder, with hard links where that is possible."""

    def link(from_: str, to: str) -> str:
        try:
            os.link(from_, to, follow_symlinks=False)
        except OSError:
            shutil.copy2(from_, to, follow_symlinks=False)
        return to

    for name in ("bin", "lib", "lib64", "pyvenv.cfg"):
        item = source / name
        if item.is_symlink() or item.is_file():
            shutil.copy2(item, target / name, follow_symlinks=False)
        else:
            shutil.copytree(item, target / name, symlinks=True, copy_function=link)


def close(folder: Path, step: Step, compiled: Path) -> None:
    """Finish an environment: compile it, drop scripts, and refuse links that lead out.

    Scripts name the interpreter by the path that the environment was made at, which no
    container has.

    Args:
        folder: The environment.
        step: Told what goes on.
        compiled: The folder to compile, the environment's ``lib`` or less.

    Raises:
        TestbedError: a link leads out of the environment.
    """
    for script in (folder / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()
    # uv leaves its lock in the environment, writable for every user.
    (folder / ".lock").unlink(missing_ok=True)
    step.update("compiling")
    # Containers see it read-only: what is not compiled now is compiled at every start.
    command.run(
        [folder / "bin/python3", "-I", "-c", _COMPILE, compiled],
        what="cannot compile the environment",
        timeout_s=_COMPILE_S,
    )
    leaks = open_links(folder)
    if leaks:
        raise TestbedError(
            f"cannot use the environment {folder.name}",
            why=f"links lead out of it: {', '.join(map(str, leaks[:3]))}",
            hint="remove the cache folder and try again",
        )


def open_links(folder: Path) -> list[Path]:
    """Return the links that resolve outside the folder and /usr, or nowhere."""
    home = folder.resolve()
    leaks = []
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where, name)
            if not path.is_symlink():
                continue
            target = path.resolve()
            system = target.is_relative_to("/usr") and not target.is_relative_to("/usr/local")
            inside = target.is_relative_to(home) and not path.readlink().is_absolute()
            if not target.exists() or not (inside or system):
                leaks.append(path.relative_to(folder))
    return leaks
