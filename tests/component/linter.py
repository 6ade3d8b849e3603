"""Linters as programs, built from Go modules beside the tests, once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from testbed.lab import cache
from testbed.lab.binaries import build
from testbed.lab.cluster.protocol import Step
from testbed.lab.progress import QuietProgress


def built(module: Path, package: str = ".") -> Path:
    """Return the program of a module, which has the name of the module's folder."""

    def make(folder: Path, step: Step) -> None:
        scratch = tempfile.mkdtemp()
        program = build.Program(name=module.name, module=str(module), package=package)
        try:
            build.build_programs([program], folder, Path(scratch), step)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    key = cache.key_of_files(module, [path for path in module.iterdir() if path.is_file()])
    entry = cache.obtain(module.name, key, make, QuietProgress(), f"build {module.name}")
    return entry / module.name
