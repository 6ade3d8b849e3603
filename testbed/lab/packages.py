"""Install Python packages, with uv where there is one, else with pip."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from testbed.errors import MissingTool
from testbed.lab import command

_INSTALL_S = 1200.0


def install(
    requirements: Sequence[str | Path],
    *,
    what: str,
    tell: Callable[[str], None],
    python: Path | None = None,
    target: Path | None = None,
    options: Sequence[str | Path] = (),
) -> None:
    """Install into an environment (``python``) or into a bare folder (``target``).

    Args:
        requirements: As pip takes them, or wheels.
        what: What could not be done if it fails, for the error.
        tell: Called with each line of the installer.
        python: Interpreter of the environment.
        target: The bare folder.
        options: Those that uv and pip have in common (``--no-deps``, ``--constraint`` ...).

    Raises:
        MissingTool: neither uv nor pip is there.
        TestbedError: the installation failed.
    """
    uv = _uv()
    arguments: list[str | Path] = []
    if uv:
        arguments = [uv, "pip", "install"]
        arguments += ["--python", python] if python else []
    elif find_spec("pip"):
        arguments = [sys.executable, "-m", "pip"]
        arguments += ["--python", python] if python else []
        arguments += ["install", "--disable-pip-version-check"]
    else:
        raise MissingTool(
            what, why="neither uv nor pip is installed", hint=f"{sys.executable} -m ensurepip"
        )
    arguments += ["--target", target] if target else []
    command.run(
        [*arguments, *options, *requirements],
        what=what,
        timeout_s=_INSTALL_S,
        tell=tell,
        hint="a package index must be reachable the first time",
    )


def build_wheel(
    source: Path,
    folder: Path,
    *,
    what: str,
    tell: Callable[[str], None],
    settings: Sequence[str] = (),
) -> Path:
    """Build a source tree's wheel into a folder and return its path.

    Args:
        source: The tree.
        folder: Where the wheel goes.
        what: What could not be done if it fails, for the error.
        tell: Called with each line of the builder.
        settings: Of the build back-end, ``name=value``.

    Raises:
        MissingTool: neither uv nor pip is there.
        TestbedError: the build failed.
    """
    uv = _uv()
    if uv:
        arguments: list[str | Path] = [uv, "build", "--wheel", "--out-dir", folder]
    else:
        arguments = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder]
    for setting in settings:
        arguments += ["-C", setting]
    command.run(
        [*arguments, source],
        what=what,
        timeout_s=_INSTALL_S,
        tell=tell,
        hint="a package index must be reachable the first time",
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")
