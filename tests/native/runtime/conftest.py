"""The runtime library on a fake driver: each script in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.native import artifacts

HERE = Path(__file__).parent
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
def runtime_library() -> Path:
    return artifacts.library("libcudart.so.13")


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the fake libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(
        ["gcc", "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
         "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1",
         HERE / "fake_driver.c"],
        check=True,
        timeout=60,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def script(fake_driver: Path, runtime_library: Path) -> Callable[..., str]:
    """Run Python text with both libraries; its output, or AssertionError with its errors."""

    def run(text: str, driver: Path = fake_driver, prelude: str = PRELUDE, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", prelude + text],
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": f"{driver}:{runtime_library.parent}",
                **env,
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
