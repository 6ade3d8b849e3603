"""Builds the library and its driver double, and runs programs under them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testbed.native import region as regions

HERE = Path(__file__).parent
NATIVE = Path(regions.__file__).parent
MIB = 1 << 20
GIB = 1 << 30
GRANULE = 2 * MIB
CONTEXT = 100 * MIB  # of the driver double
OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801

#: A program that does not answer within this is killed and the test fails.
DEADLINE = 180.0

STRICT = ("-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC")
SHIM_LINK = (
    "-shared",
    "-Wl,-Bsymbolic",
    "-Wl,-z,now",
    f"-Wl,--version-script={NATIVE / 'shim' / 'exports.map'}",
)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_(output: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Compile where the result of the same sources and flags is not there yet."""
    state = hashlib.sha256("\0".join(flags).encode())
    watched = [*sources, *(NATIVE / "shim").glob("*.h"), *(NATIVE / "include").glob("*.h")]
    for file in sorted({*watched, *HERE.glob("*/*.h"), NATIVE / "shim" / "exports.map"}):
        state.update(file.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"vgpu-shim-tests-{os.getuid()}" / state.hexdigest()[:16]
    result = folder / output.name
    assert result not in _failed, "does not compile, see the first failure"
    if not result.exists():
        _failed.add(result)  # until it has compiled: the next test need not try again
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{os.getpid()}.{output.name}"
        command = ["gcc", *flags, *map(str, sources), "-o", str(temporary)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
        assert done.returncode == 0, done.stderr
        temporary.replace(result)
        _failed.discard(result)
    return result


_failed: set[Path] = set()


@functools.cache
def shim(*, sanitized: bool = False, defines: tuple[str, ...] = ()) -> Path:
    """Build libvgpu.so from the sources of the tree."""
    sources = sorted((NATIVE / "shim").glob("*.c"))
    flags = [*STRICT, "-O1" if sanitized else "-O2", "-fvisibility=hidden", *defines]
    flags += [f"-I{NATIVE / 'include'}", *SHIM_LINK]
    flags += SANITIZERS if sanitized else ["-Wl,--no-undefined"]
    return compile_(Path("libvgpu.so"), sources, *flags)


@functools.cache
def fake_driver() -> Path:
    """Build the driver double; its folder holds libcuda.so.1 and libnvidia-ml.so.1."""
    fake = HERE / "fake"
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    cuda = compile_(
        Path("libcuda.so.1"),
        [fake / "cuda.c", fake / "state.c"],
        *flags,
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libcuda.so.1",
    )
    nvml = compile_(
        Path("libnvidia-ml.so.1"),
        [fake / "nvml.c", fake / "state.c"],
        *flags,
        "-Wl,-soname,libnvidia-ml.so.1",
    )
    link = cuda.parent / nvml.name
    if not (link.is_symlink() and link.readlink() == nvml):
        temporary = link.with_name(f".{os.getpid()}.link")
        temporary.symlink_to(nvml)
        temporary.replace(link)
    return cuda.parent


def fake_uuid(card: int) -> str:
    return f"GPU-f0cade00-0001-4002-8003-0000000000{card:02x}"


def fake_instance(card: int) -> str:
    """Return the uuid of a card's instance under FAKE_MIG."""
    return fake_uuid(card).replace("GPU-f0", "MIG-f1")


class Program:
    """A running child.py; calling it evaluates Python code in it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what it forks can be ended with it
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, code: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, left))
            chunk = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                self._process.kill()
                _, errors = self._process.communicate(timeout=DEADLINE)
                state = "ended" if ready else "did not answer"
                raise AssertionError(f"program {state}: {errors.decode(errors='replace')}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def __call__(self, code: str) -> Any:
        self.send(code)
        return self.receive()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=DEADLINE)

    def finish(self) -> tuple[int, str]:
        """Let it end; its exit status and what it wrote to stderr."""
        _, errors = self._process.communicate(timeout=DEADLINE)
        return self._process.returncode, errors.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=DEADLINE)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what it had not read yet
                pipe.close()


@dataclass(frozen=True, kw_only=True)
class Container:
    """The environment of one container: a region (or none), a library, a driver."""

    library: Path | None
    driver: Path
    environment: Mapping[str, str]
    region: Path | None = None
    sanitized: bool = False

    def start(self, *, prefix: Sequence[str] = (), **environment: str) -> Program:
        merged = {**self.environment, **environment}
        command = [*prefix, "env", *(f"{key}={value}" for key, value in merged.items())]
        return Program([*command, sys.executable, "-u", str(HERE / "child.py")], self.base())

    def base(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}

    def without_library(self) -> Container:
        """The control: the same program without the library."""
        environment = {k: v for k, v in self.environment.items() if k != "LD_PRELOAD"}
        return Container(library=None, driver=self.driver, environment=environment)

    def view(self) -> regions.RegionView:
        assert self.region is not None
        return regions.read_region(self.region)

    def used(self, device: int = 0) -> int:
        return self.view().used[device].total_bytes


def preload_of(library: Path, *, sanitized: bool) -> dict[str, str]:
    if not sanitized:
        return {"LD_PRELOAD": str(library)}
    found = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "LD_PRELOAD": " ".join([*found, str(library)]),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
