"""Asked in another's name: RTLD_NEXT of libraries beside the driver, and dlvsym."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import OUT_OF_MEMORY, Container

#: What the driver double's symbols have as version where it is built with one.
VERSION = "FAKE_DRIVER_1"

ASKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
typedef int take_fn(unsigned long long *, unsigned long);
int cuInit(unsigned int);
int linked_with_the_driver(void) { return cuInit(0); }
/* No tail call: the C library looks at where its answer goes. */
int take_by(const char *how, const char *version, unsigned long bytes) {
    void *handle = strcmp(how, "default") == 0 ? RTLD_DEFAULT : RTLD_NEXT;
    void *found = version != NULL ? dlvsym(handle, "cuMemAlloc_v2", version)
                                  : dlsym(handle, "cuMemAlloc_v2");
    unsigned long long at;
    return found == NULL ? -1 : ((take_fn *)found)(&at, bytes);
}
const char *missing(int by_version) {
    void *found = by_version ? dlvsym(RTLD_NEXT, "cuMemAlloc_v2", "NO_SUCH_VERSION")
                             : dlsym(RTLD_NEXT, "cuMemAlloc_v77");
    const char *why = dlerror();
    return found != NULL ? "found" : why == NULL ? "no reason" : why;
}
"""


def asker(folder: Path, driver: Path) -> Path:
    """Build a library that is linked with the driver and asks by RTLD_NEXT."""
    (folder / "asks.c").write_text(ASKS)
    library = folder / "asks.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", folder / "asks.c", driver, "-o", library, "-ldl"]
    subprocess.run(command, check=True, timeout=240)
    return library


def ask(program: harness.Program, library: Path) -> None:
    program(f"asks = ctypes.CDLL({str(library)!r}); asks.missing.restype = c_char_p")
    program("take = lambda how, version, size: asks.take_by(how, version, c_size_t(size))")


@pytest.fixture
def versioned(gibibyte: Container, tmp_path: Path) -> Container:
    """The same container, with a driver whose symbols have a version."""
    folder = tmp_path / "versioned"
    folder.mkdir()
    script = folder / "map"
    script.write_text(VERSION + " { global: *; };\n")
    fake = harness.HERE / "fake"
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wl,-Bsymbolic"]
    command = ["gcc", *flags, "-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={script}"]
    command += [str(fake / "cuda.c"), str(fake / "state.c"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True, timeout=240)
    (folder / "libnvidia-ml.so.1").symlink_to(gibibyte.driver / "libnvidia-ml.so.1")
    environment = {**gibibyte.environment, "LD_LIBRARY_PATH": str(folder)}
    return Container(
        library=gibibyte.library,
        driver=folder,
        environment=environment,
        region=gibibyte.region,
        sanitized=gibibyte.sanitized,
    )


@pytest.mark.parametrize("before", ["driver", "asker"])
def test_the_next_after_a_library_beside_the_driver(
    gibibyte: Container, tmp_path: Path, before: str
) -> None:
    """Whichever of the two was loaded first."""
    library = asker(tmp_path, gibibyte.driver / "libcuda.so.1")
    for box, code in ((gibibyte, OUT_OF_MEMORY), (gibibyte.without_library(), 0)):
        with box.start() as program:
            if before == "driver":
                program("cuda()")
            ask(program, library)
            assert program("context()") == 0
            assert program("take(b'next', None, 2 * GIB)") == code
            assert program("take(b'next', None, 1 * MIB)") == 0
            assert "cuMemAlloc_v77" in program("asks.missing(0).decode()")


def test_by_version(versioned: Container, tmp_path: Path) -> None:
    library = asker(tmp_path, versioned.driver / "libcuda.so.1")
    for box, code in ((versioned, OUT_OF_MEMORY), (versioned.without_library(), 0)):
        with box.start() as program:
            ask(program, library)
            program("ctypes.CDLL('libcuda.so.1', mode=ctypes.RTLD_GLOBAL)")
            assert program("context()") == 0
            for how in ("next", "default"):
                asked = f"take(b'{how}', b'{VERSION}', {{}})"
                assert program(asked.format("2 * GIB")) == code, how
                assert program(asked.format("1 << 20")) == 0, how
            assert "NO_SUCH_VERSION" in program("asks.missing(1).decode()")


def test_by_version_through_a_handle(versioned: Container) -> None:
    with versioned.start() as program:
        program("find = ctypes.CDLL(None).dlvsym")
        program("find.restype, find.argtypes = c_void_p, (c_void_p, c_char_p, c_char_p)")
        assert program("context()") == 0
        program(
            f"take = at(find(cuda()._handle, b'cuMemAlloc_v2', b'{VERSION}'), c_void_p, c_size_t)"
        )
        assert program("take(byref(c_uint64()), 2 * GIB)") == OUT_OF_MEMORY
        assert program("take(byref(c_uint64()), 1 << 20)") == 0


def test_a_version_of_any_other_symbol_is_the_c_librarys(gibibyte: Container) -> None:
    """Also what other interposers find themselves by."""
    with gibibyte.start() as program:
        program("ours, libc = ctypes.CDLL(None).dlvsym, ctypes.CDLL('libc.so.6')")
        program("ours.restype, ours.argtypes = c_void_p, (c_void_p, c_char_p, c_char_p)")
        program("theirs = libc.dlvsym")
        program("theirs.restype, theirs.argtypes = c_void_p, (c_void_p, c_char_p, c_char_p)")
        assert program("ours is not theirs")
        assert program("ctypes.cast(ours, c_void_p).value != ctypes.cast(theirs, c_void_p).value")
        for name in ("memcpy", "dlsym", "cuNothing", "pthread_cond_wait"):
            asked = f"(libc._handle, b'{name}', b'GLIBC_2.2.5')"
            assert program(f"ours{asked} == theirs{asked}"), name
        assert program("theirs(libc._handle, b'memcpy', b'GLIBC_2.2.5')")
