"""Build the native parts: ``python -m testbed.native.build [--sanitize] [part …]``.

Each part (folder) is built and kept by itself under a key of its content, so that an
unchanged tree is instant, and a part that does not compile does not stop the others.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import MissingTool, TestbedError

SOURCE = Path(__file__).resolve().parent
#: Folders of parts, in the order in which they are built.
PARTS = ("emu", "runtime", "shim", "ocifront", "bench")
#: The OCI front runs under containerd, not in a test's process, and the benchmarks measure:
#: no sanitizers there.
SANITIZED_PARTS = ("emu", "runtime", "shim")
SUFFIXES = {".c", ".h", ".def", ".map", ".S", ".txt"}
DEADLINE_S = 600


def parts(names: Sequence[str], *, sanitize: bool) -> tuple[str, ...]:
    """Return the parts to build, of those that are there."""
    wanted = tuple(names) or (SANITIZED_PARTS if sanitize else PARTS)
    return tuple(part for part in wanted if (SOURCE / part / "CMakeLists.txt").exists())


def build(
    names: Sequence[str] = (),
    *,
    sanitize: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Build parts and install them into ``testbed/native/lib``.

    Args:
        names: Folders; all where there are none.
        sanitize: Build with address and undefined-behaviour sanitizers, into
            ``lib/sanitized``.
        tell: Called with each part that is compiled, before it is.

    Returns:
        The folder that holds the built files.

    Raises:
        MissingTool: no CMake, Ninja or C compiler.
        TestbedError: a part does not compile.
    """
    lib = SOURCE / "lib" / "sanitized" if sanitize else SOURCE / "lib"
    for part in parts(names, sanitize=sanitize):
        _build_part(part, lib, tell, sanitize=sanitize)
    return lib


def _build_part(
    part: str, lib: Path, tell: Callable[[str], None] | None, *, sanitize: bool
) -> None:
    compiler = _tool("cc")
    key = _key(part, compiler, sanitize=sanitize)
    marker = lib / f".{part}.key"
    if marker.exists() and marker.read_text().splitlines()[:1] == [key] and _complete(lib, marker):
        return
    cache = _cache()
    kept = cache / f"{part}-{key}"
    with _alone(cache / f"{part}{'-sanitized' if sanitize else ''}.lock"):
        if not kept.exists():
            if tell is not None:
                tell(part)
            _compile(part, kept, cache, sanitize=sanitize)
        files = sorted(path.name for path in (kept / "lib").iterdir())
        lib.mkdir(parents=True, exist_ok=True)
        for name in files:
            _replace(kept / "lib" / name, lib / name)
        marker.write_text("\n".join([key, *files]) + "\n")


def _complete(lib: Path, marker: Path) -> bool:
    return all((lib / name).exists() for name in marker.read_text().splitlines()[1:])


def _replace(source: Path, target: Path) -> None:
    # A new file under the old name: processes that have the old one mapped keep it.
    new = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, new)
    new.rename(target)


def _compile(part: str, kept: Path, cache: Path, *, sanitize: bool) -> None:
    folder = cache / f"build-{part}{'-sanitized' if sanitize else ''}"
    staging = cache / f"{kept.name}.{os.getpid()}"
    cmake = _tool("cmake")
    configure = [
        cmake,
        *("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"),
        *("-S", str(SOURCE), "-B", str(folder)),
        f"-DVGPU_PARTS={part}",
        f"-DVGPU_SANITIZE={'ON' if sanitize else 'OFF'}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    ]
    # A build folder of another clone cannot be used again.
    known = folder / "CMakeCache.txt"
    if known.exists() and f"CMAKE_HOME_DIRECTORY:INTERNAL={SOURCE}\n" not in known.read_text():
        shutil.rmtree(folder)
    try:
        _run(part, configure)
        _run(part, [cmake, "--build", str(folder)])
        _run(part, [cmake, "--install", str(folder), "--prefix", str(staging)])
        staging.rename(kept)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run(part: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise TestbedError(
            f"the native part {part} could not be built", why=f"no end after {DEADLINE_S} s"
        ) from error
    if done.returncode != 0:
        raise TestbedError(
            f"the native part {part} could not be built",
            why=(done.stdout + done.stderr).strip()[-4000:],
        )


def _key(part: str, compiler: str, *, sanitize: bool) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=60)
    digest.update(version.stdout)
    digest.update(b"sanitize" if sanitize else b"plain")
    files = [SOURCE / "CMakeLists.txt"]
    for folder in (SOURCE / "include", SOURCE / part):
        files += sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(SOURCE)} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:20]


def _tool(name: str) -> str:
    # The virtual environment brings CMake and Ninja as wheels; it need not be active.
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        # gcc alone does not bring the headers: Debian only recommends them.
        package = {"cc": "gcc libc6-dev", "ninja": "ninja-build"}.get(name, name)
        raise MissingTool(
            "the native parts cannot be built",
            why=f"there is no {name}",
            hint=f"install it: apt-get install {package}",
        )
    return found


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "vgpu-testbed" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(part: str) -> None:
    sys.stderr.write(f"… native part {part}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.native.build", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--sanitize", action="store_true", help="into lib/sanitized")
    given = parser.parse_args(arguments)
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    try:
        build(given.parts, sanitize=given.sanitize, tell=_say)
    except TestbedError as error:
        sys.stderr.write(f"error: {error.text()}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
