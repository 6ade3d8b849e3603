"""The runtime library on a fake driver: each script in a process of its own.

Everything runs twice: on the built library, and on one with address and
undefined-behaviour sanitizers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.native import artifacts

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "testbed" / "native" / "runtime"
#: Loads both libraries; scripts use `rt`, `driver` and `log()`.
PRELUDE = """
import ctypes as c, os, sys
driver = c.CDLL("libcuda.so.1")
rt = c.CDLL("libcudart.so.13")
rt.cudaGetErrorName.restype = rt.cudaGetErrorString.restype = c.c_char_p
rt.__getattr__("__cudaRegisterFatBinary").restype = c.c_void_p
class dim3(c.Structure):
    _fields_ = [("x", c.c_uint), ("y", c.c_uint), ("z", c.c_uint)]
def fake(name, kind=c.c_int):
    return kind.in_dll(driver, name)
def log():
    return (c.c_char * (1 << 20)).in_dll(driver, "fake_log").value.decode().splitlines()
def pointer():
    return c.c_void_p()
def at(address):
    return c.c_void_p(address)
def launch(function, x):
    none = c.c_size_t(0)
    return rt.cudaLaunchKernel(function, dim3(x, 1, 1), dim3(32, 1, 1), None, none, None)
def register(image, host, name):
    getattr(rt, "__cudaRegisterFunction")(image, host, None, name, -1, *[None] * 5)
def entry_point(name, function, status=None):
    flags = c.c_ulonglong(0)
    return rt.cudaGetDriverEntryPointByVersion(name, c.byref(function), 12000, flags, status)
"""


@pytest.fixture(scope="session")
def runtime_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder of its own: beside the built one lies the emulated driver."""
    folder = tmp_path_factory.mktemp("runtime")
    return Path(shutil.copy(artifacts.library("libcudart.so.13"), folder))


@pytest.fixture(scope="session")
def sanitized_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sanitized") / "libcudart.so.13"
    gcc(
        "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
        "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={SOURCES / 'libcudart.map'}",
        "-Wl,-Bsymbolic", "-o", target, *sorted(SOURCES.glob("*.c")),
    )  # fmt: skip
    return target


def gcc(*arguments: object) -> None:
    flags = ("-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    subprocess.run(["gcc", *flags, *map(str, arguments)], check=True, timeout=120)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the fake libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    gcc("-g", "-O1", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1",
        HERE / "fake_driver.c")  # fmt: skip
    return folder


@pytest.fixture(params=["plain", "sanitized"])
def script(request: pytest.FixtureRequest, fake_driver: Path) -> Callable[..., str]:
    """Run Python text with both libraries; its output, or AssertionError with its errors."""
    sanitized = request.param == "sanitized"
    library = request.getfixturevalue("sanitized_library" if sanitized else "runtime_library")

    def run(text: str, driver: Path = fake_driver, prelude: str = PRELUDE, **env: str) -> str:
        preload = [env.pop("LD_PRELOAD", "")]
        if sanitized:
            # First, since it must come before all else; Python itself leaks at its end.
            preload.insert(0, _libasan())
            env |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        done = subprocess.run(
            [sys.executable, "-c", prelude + text],
            capture_output=True,
            text=True,
            timeout=240,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": f"{driver}:{library.parent}",
                "LD_PRELOAD": ":".join(filter(None, preload)),
                **env,
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _libasan() -> str:
    done = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
