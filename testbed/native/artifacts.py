"""Where the built native files are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import testbed.native
from testbed.errors import MissingTool

ENVIRONMENT = "VGPU_TESTBED_NATIVE"


def folders() -> tuple[Path, ...]:
    """Return the folders that may hold built files, the first match wins.

    The environment variable comes first; then ``lib`` in every part of the package
    (an editable install has two: the sources and what the build put beside them).
    """
    given = os.environ.get(ENVIRONMENT)
    packages = tuple(Path(part) / "lib" for part in testbed.native.__path__)
    return ((Path(given),) if given else ()) + packages


def library(name: str) -> Path:
    """Return the path of a built library or program.

    Args:
        name: File name, such as ``libcuda.so.1``, ``libvgpu.so``, ``vgpu-oci-front``.

    Raises:
        MissingTool: it has not been built.
    """
    for folder in folders():
        path = folder / name
        if path.exists():
            return path.resolve()
    raise MissingTool(
        f"{name} is not built",
        why="it is in none of " + ", ".join(str(folder) for folder in folders()),
        hint="run `python -m testbed.native.build`",
    )


def build_of(content: bytes) -> str:
    """Return the name of a library's build: a short digest of its content."""
    return hashlib.sha256(content).hexdigest()[:16]
