"""Compile the stand-ins and put the CUDA runtime library beside them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.errors import MissingTool, TestbedError
from testbed.native.standins.elf import read
from testbed.native.standins.generate import Plan, Source, plan

_HEADERS = Path(__file__).parent
_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # Warnings are for our tests: a newer compiler's must not stop anybody's set-up.
    "-w",
    "-Wl,-Bsymbolic",
    "-Wl,-z,defs",
)
_COMPILE_S = 60.0


def sources() -> list[Path]:
    """Return the files that decide what a stand-in is, for the key of a cache."""
    return sorted(p for p in _HEADERS.iterdir() if p.suffix in (".py", ".h", ".c"))


def build(
    site_packages: Path,
    runtime: Path,
    folder: Path,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[str, ...]:
    """Fill ``folder`` with everything that the torch in ``site_packages`` links but does not bring.

    Args:
        site_packages: Where torch is installed.
        runtime: Our built CUDA runtime library.
        folder: Made if missing.
        tell: Called with a line for each library.

    Returns:
        The sonames made.

    Raises:
        MissingTool: there is no C compiler.
        TestbedError: this torch needs what neither the runtime library nor a stand-in has.
    """
    found = plan(site_packages)
    _check_runtime(found, runtime)
    program = compiler()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(runtime, folder / found.runtime_soname)
    (folder / found.runtime_soname).chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="standins-") as scratch, ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(_compile, program, source, Path(scratch), folder)
            for source in found.sources
        ]
        for source, job in zip(found.sources, jobs, strict=True):
            job.result()
            tell(f"{source.soname}: {source.size} functions")
    return (found.runtime_soname, *(s.soname for s in found.sources))


def _check_runtime(found: Plan, runtime: Path) -> None:
    missing = sorted(found.runtime - read(runtime).exports)
    if missing:
        raise TestbedError(
            "this torch does not fit the testbed's CUDA runtime library",
            why=f"it imports {', '.join(missing)}",
            hint="use the torch version that the testbed names",
        )


def compiler() -> str:
    """Return the C compiler's path.

    Raises:
        MissingTool: there is none.
    """
    for name in ("gcc", "cc", "clang"):
        path = shutil.which(name)
        if path:
            return path
    raise MissingTool(
        "cannot compile the stand-ins for emulated cards",
        why="no C compiler found",
        hint="apt-get install gcc libc6-dev",
    )


def _compile(program: str, source: Source, scratch: Path, folder: Path) -> None:
    c = scratch / f"{source.soname}.c"
    script = scratch / f"{source.soname}.map"
    c.write_text(source.c)
    script.write_text(source.version_script)
    target = folder / source.soname
    command = [
        program,
        *_FLAGS,
        f"-I{_HEADERS}",
        f"-Wl,-soname,{source.soname}",
        f"-Wl,--version-script={script}",
        "-o",
        str(target),
        str(c),
        *(str(_HEADERS / name) for name in source.written),
        "-lpthread",  # in the C library itself since glibc 2.34
        "-ldl",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S)
    except subprocess.TimeoutExpired as error:
        raise TestbedError(
            f"cannot compile the stand-in {source.soname}",
            why=f"the compiler took more than {_COMPILE_S:g} s",
        ) from error
    if done.returncode:
        raise TestbedError(
            f"cannot compile the stand-in {source.soname}",
            why=done.stderr.strip(),
            hint="apt-get install gcc libc6-dev",
        )
