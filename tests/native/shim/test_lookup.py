"""How programs get to the library: and what must not change for them by its presence."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import CONTEXT, GIB, HERE, OUT_OF_MEMORY, Container

Make = Callable[..., Container]


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=harness.DEADLINE,
        check=False,
    )


@pytest.mark.parametrize("alias", [{}, {"FAKE_ALIAS": "1"}], ids=["same address", "other address"])
@pytest.mark.parametrize(
    ("base", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13020, 0, "cuMemAlloc_v2"),
        ("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 13000, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 13000, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemFree", 2000, 0, "cuMemFree"),
        ("cuMemFree", 12000, 0, "cuMemFree_v2"),
        ("cuMemGetInfo", 3020, 0, "cuMemGetInfo_v2"),
        ("cuCtxCreate", 3000, 0, "cuCtxCreate"),
        ("cuCtxCreate", 11000, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuGraphAddNode", 12020, 0, "cuGraphAddNode"),
        ("cuGraphAddNode", 13000, 0, "cuGraphAddNode_v2"),
        ("cuCtxSynchronize", 12000, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
    ],
)
def test_the_hook_of_the_same_abi(
    container: Make, base: str, version: int, flags: int, symbol: str, alias: dict[str, str]
) -> None:
    """D18: what cuGetProcAddress answers is the hook of the version asked for."""
    with container(GIB, **alias).start() as program:
        assert program(f"proc({base!r}, {version}, {flags})") == program(f"address({symbol!r})")


def test_both_generations_of_cugetprocaddress(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("out = c_void_p()")
        program("cuda().cuGetProcAddress.argtypes = [c_char_p, c_void_p, c_int, c_uint64]")
        assert program("cuda().cuGetProcAddress(b'cuMemAlloc', byref(out), 12000, 0)") == 0
        assert program("out.value") == program("address('cuMemAlloc_v2')")


@pytest.mark.parametrize("alias", [{}, {"FAKE_ALIAS": "1"}], ids=["same address", "other address"])
def test_calls_by_address_are_capped(container: Make, alias: dict[str, str]) -> None:
    with container(GIB, **alias).start() as program:
        program("context()")
        program("new = at(proc('cuMemAlloc', 12000), c_void_p, c_size_t); p = c_uint64()")
        program("old = at(proc('cuMemAlloc', 2000), c_void_p, c_uint); q = c_uint()")
        assert program("new(byref(p), 600 * MIB)") == 0
        assert program("old(byref(q), 200 * MIB)") == 0
        assert program("fake_calls('cuMemAlloc'), fake_calls('cuMemAlloc_v2')") == [1, 1]
        assert program("new(byref(p), 200 * MIB)") == OUT_OF_MEMORY
        assert program("old(byref(q), 200 * MIB)") == OUT_OF_MEMORY


def test_what_is_not_hooked_stays_the_drivers(gibibyte: Container) -> None:
    with gibibyte.start() as ours, gibibyte.without_library().start() as plain:
        base = "address({0!r}) - address('cuDeviceGetCount')"
        for name in ("cuDeviceGet", "cuCtxSetCurrent", "cuStreamGetCtx"):
            assert ours(base.format(name)) == plain(base.format(name))
        assert ours("proc('cuDeviceGetCount', 12000) - address('cuDeviceGetCount')") == 0
        assert ours("proc('cuNoSuchThing', 12000)") == 0


def test_a_program_that_probes_for_cuda(container: Make) -> None:
    """Without a driver, nothing tells it that there is one."""
    box = container(GIB)
    environment = {k: v for k, v in box.environment.items() if k != "LD_LIBRARY_PATH"}
    code = (
        "import ctypes\n"
        "for name in ('cuInit', 'cuMemAlloc_v2', 'nvmlDeviceGetMemoryInfo'):\n"
        "    try: getattr(ctypes.CDLL(None), name)\n"
        "    except AttributeError as error: print(error)\n"
        "    else: print('found', name)\n"
    )
    done = run([sys.executable, "-c", code], environment)
    lines = done.stdout.splitlines()
    assert [line for line in lines if "undefined symbol" in line] == lines and len(lines) == 3


def test_a_driver_in_the_global_scope(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("ctypes.CDLL('libcuda.so.1', mode=ctypes.RTLD_GLOBAL)")
        found = "ctypes.cast(ctypes.CDLL(None).cuMemAlloc_v2, c_void_p).value"
        assert program(found) == program("address('cuMemAlloc_v2')")


MALLOC_HOOK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *(*next)(size_t);
static char early[1 << 16];
static size_t used;
static int depth, most;
void *malloc(size_t size) {
    if (depth > 100) { write(2, "recursion\n", 10); _exit(9); }
    if (next == NULL) {
        if (depth) { void *at = early + used; used += (size + 15) & ~15ul; return at; }
        depth++;
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
        depth--;
    }
    if (++depth > most) most = depth;
    void *at = next(size);
    depth--;
    return at;
}
int deepest(void) { return most; }
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_rtld_next_keeps_its_meaning(container: Make, tmp_path: Path, order: str) -> None:
    """An allocator's interposer must not find itself, wherever it stands."""
    source = tmp_path / "hook.c"
    source.write_text(MALLOC_HOOK)
    hook = tmp_path / "hook.so"
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", hook], check=True, timeout=240)
    box = container(GIB)
    if box.sanitized:
        pytest.skip("the sanitizer interposes malloc itself")
    libraries = [str(hook), box.environment["LD_PRELOAD"]]
    preload = " ".join(libraries if order == "before" else libraries[::-1])
    code = f"import ctypes; print(ctypes.CDLL({str(hook)!r}).deepest())"
    done = run([sys.executable, "-c", code], {**box.environment, "LD_PRELOAD": preload})
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


DLSYM_HOOK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
static int seen;
void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (next == NULL)
        next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (strcmp(name, "cuMemAlloc_v2") == 0) seen++;
    return next(handle, name);
}
int asked(void) { return seen; }
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_beside_another_dlsym(container: Make, tmp_path: Path, order: str) -> None:
    """D19: neither recursion nor a hole in the cap."""
    source = tmp_path / "hook.c"
    source.write_text(DLSYM_HOOK)
    hook = tmp_path / "hook.so"
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", hook], check=True, timeout=240)
    box = container(GIB)
    if box.sanitized:
        pytest.skip("the sanitizer asks for symbols before the other one's strcmp works")
    parts = box.environment["LD_PRELOAD"].split()
    place = len(parts) - 1 if order == "before" else len(parts)
    parts.insert(place, str(hook))
    with box.start(LD_PRELOAD=" ".join(parts)) as program:
        program("context()")
        assert program("fill()") == GIB - CONTEXT


WRAPPER = r"""
int cuMemAlloc_v2(unsigned long long *ptr, unsigned long size) {
    *ptr = 42;
    (void)size;
    return 0;
}
"""


def test_a_wrapper_of_the_same_name_stays_itself(container: Make, tmp_path: Path) -> None:
    source = tmp_path / "wrapper.c"
    source.write_text(WRAPPER)
    library = tmp_path / "wrapper.so"
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True, timeout=240)
    with container(GIB).start() as program:
        program(f"w = ctypes.CDLL({str(library)!r}); p = c_uint64()")
        assert program("w.cuMemAlloc_v2(byref(p), c_size_t(5)) or p.value") == 42


LINKED = r"""
#include <errno.h>
#include <stdio.h>
int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int cuMemFree_v2(unsigned long long);
int main(void) {
    void *ctx;
    unsigned long long ptr;
    int first = cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx);
    errno = 77;
    int codes[3] = {cuMemAlloc_v2(&ptr, 600ul << 20), cuMemAlloc_v2(&ptr, 600ul << 20), 0};
    codes[2] = cuMemFree_v2(3);
    printf("[%d, %d, %d, %d, %d]", first, codes[0], codes[1], codes[2], errno);
    return 0;
}
"""


def test_a_program_linked_with_the_driver(gibibyte: Container, tmp_path: Path) -> None:
    """Calls by exported name; and errno is the program's."""
    source = tmp_path / "linked.c"
    source.write_text(LINKED)
    program = tmp_path / "linked"
    driver = gibibyte.driver / "libcuda.so.1"
    subprocess.run(["gcc", source, driver, "-o", program], check=True, timeout=240)
    done = run([str(program)], dict(gibibyte.environment))
    assert json.loads(done.stdout) == [0, 0, OUT_OF_MEMORY, 1, 77]
    control = run([str(program)], dict(gibibyte.without_library().environment))
    assert json.loads(control.stdout) == [0, 0, 0, 1, 77]


@pytest.mark.parametrize("how", ["deepbind", "global"])
def test_the_drivers_functions_are_replaced_however_it_was_loaded(
    gibibyte: Container, how: str
) -> None:
    """RTLD_DEEPBIND, and a driver in the global scope before us."""
    if gibibyte.sanitized:
        pytest.skip("the sanitizer refuses RTLD_DEEPBIND, and wants to be first")
    before = {"LD_PRELOAD": f"libcuda.so.1 {gibibyte.environment['LD_PRELOAD']}"}
    with gibibyte.start(**(before if how == "global" else {})) as program:
        program(
            "_cuda = ctypes.CDLL('libcuda.so.1', mode=2 | 8)"
            if how == "deepbind"
            else "_cuda = ctypes.CDLL(None)"
        )
        assert program("context()") == 0
        assert program("alloc(600 * MIB)")[0] == 0
        assert program("alloc(600 * MIB)")[0] == OUT_OF_MEMORY


# What the README says is open. Where one of these is closed some day, it has to say so.


def test_open_a_driver_preloaded_before_us_binds_a_linked_program(
    gibibyte: Container, tmp_path: Path
) -> None:
    if gibibyte.sanitized:
        pytest.skip("the sanitizer wants to be first")
    (tmp_path / "linked.c").write_text(LINKED)
    driver = gibibyte.driver / "libcuda.so.1"
    command = ["gcc", tmp_path / "linked.c", driver, "-o", tmp_path / "linked"]
    subprocess.run(command, check=True, timeout=240)
    before = {"LD_PRELOAD": f"libcuda.so.1 {gibibyte.environment['LD_PRELOAD']}"}
    done = run([str(tmp_path / "linked")], {**gibibyte.environment, **before})
    assert json.loads(done.stdout) == [0, 0, 0, 1, 77]


def test_open_a_plug_in_that_is_bound_deeply(gibibyte: Container, tmp_path: Path) -> None:
    """Linked with the driver and loaded with RTLD_DEEPBIND: its own scope comes first."""
    if gibibyte.sanitized:
        pytest.skip("the sanitizer refuses RTLD_DEEPBIND")
    source = tmp_path / "plugin.c"
    source.write_text(
        "int cuMemAlloc_v2(unsigned long long *, unsigned long);\n"
        "int take(unsigned long long *p, unsigned long n) { return cuMemAlloc_v2(p, n); }\n"
    )
    driver = gibibyte.driver / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", source, driver, "-o", tmp_path / "plugin.so"]
    subprocess.run(command, check=True, timeout=240)
    for mode, codes in ((2, [0, OUT_OF_MEMORY]), (2 | 8, [0, 0])):
        with gibibyte.start() as program:
            assert program("context()") == 0
            program(f"plugin = ctypes.CDLL({str(tmp_path / 'plugin.so')!r}, mode={mode})")
            program("take = lambda: plugin.take(byref(c_uint64()), c_size_t(600 * MIB))")
            assert [program("take()"), program("take()")] == codes


def test_open_the_c_librarys_own_dlsym(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        assert program("context()") == 0
        program("find = ctypes.CDLL('libc.so.6').dlsym")
        program("find.restype, find.argtypes = c_void_p, (c_void_p, c_char_p)")
        program("take = at(find(cuda()._handle, b'cuMemAlloc_v2'), c_void_p, c_size_t)")
        assert program("take(byref(c_uint64()), 2 * GIB)") == 0
        assert program("alloc(2 * GIB)")[0] == OUT_OF_MEMORY


# --- another C library --------------------------------------------------------------------

MUSL = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int count, char **arguments) {
    int own = dlsym(RTLD_DEFAULT, "strlen") == (void *)strlen;
    int told = dlsym(RTLD_DEFAULT, "cuInit") != NULL;
    printf("[%d, %d", own, told);
    void *driver = count > 1 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    if (driver != NULL) {
        int (*init)(unsigned) = dlsym(driver, "cuInit");
        int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
        int (*use)(void *) = dlsym(driver, "cuCtxSetCurrent");
        int (*take)(unsigned long long *, size_t) = dlsym(driver, "cuMemAlloc_v2");
        void *ctx;
        unsigned long long ptr;
        int first = init(0) || retain(&ctx, 0) || use(ctx);
        int second = take(&ptr, 300ul << 20), third = take(&ptr, 300ul << 20);
        printf(", %d, %d, %d", first, second, third);
    } else if (count > 1) puts(dlerror());
    printf("]");
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="no musl (Debian: musl-tools)")
def test_a_program_on_musl(gibibyte: Container, tmp_path: Path) -> None:
    """It runs as ever, and is told in one line once it asks for the card."""
    if gibibyte.sanitized:
        pytest.skip("the sanitizer is glibc's")
    (tmp_path / "musl.c").write_text(MUSL)
    command = ["musl-gcc", tmp_path / "musl.c", "-o", tmp_path / "musl"]
    subprocess.run(command, check=True, timeout=240)
    fake = [HERE / "fake" / "cuda.c", HERE / "fake" / "state.c"]
    command = ["musl-gcc", "-w", "-shared", "-fPIC", *fake, "-o", tmp_path / "libcuda.so.1"]
    subprocess.run(command, check=True, timeout=240)
    environment = {**gibibyte.environment, "LD_LIBRARY_PATH": str(tmp_path)}
    quiet = run([str(tmp_path / "musl")], environment)
    assert (json.loads(quiet.stdout), quiet.stderr) == ([1, 0], "")
    # There is no NVML of musl's: the context counts as 512 MiB of the GiB.
    asks = run([str(tmp_path / "musl"), "x"], environment)
    assert json.loads(asks.stdout) == [1, 0, 0, 0, OUT_OF_MEMORY]
    (line,) = asks.stderr.splitlines()
    assert "the C library is musl" in line


# --- harmless where nothing is asked of it ------------------------------------------------


def test_it_needs_the_c_library_and_an_old_one_will_do() -> None:
    library = harness.shim()
    dynamic = subprocess.run(
        ["readelf", "-dW", library], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert [line.split("[")[1] for line in dynamic.splitlines() if "(NEEDED)" in line] == [
        "libc.so.6]"
    ]
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", library],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    versions = {
        tuple(map(int, line.rsplit("@GLIBC_", 1)[1].split(".")))
        for line in undefined.splitlines()
        if "@GLIBC_" in line
    }
    assert max(versions) <= (2, 17)
    names = {line.split()[-1].split("@")[0] for line in undefined.splitlines()}
    assert not names & {
        "malloc",
        "free",
        "dlsym",
        "dlvsym",
        "dlopen",
        "pthread_mutex_lock",
        "open",
        "close",
    }


def test_it_exports_hooks_and_lookups_only() -> None:
    names = exported(harness.shim())
    assert {name for name in names if not name.startswith(("cu", "nvml"))} == {
        "dlsym@@GLIBC_2.34",
        "dlsym@GLIBC_2.2.5",
        "dlvsym@@GLIBC_2.34",
        "dlvsym@GLIBC_2.2.5",
        "GLIBC_2.2.5",
        "GLIBC_2.34",
    }


def exported(library: Path) -> set[str]:
    output = subprocess.run(
        ["nm", "-D", "--defined-only", library],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    return {line.split()[2] for line in output.splitlines()}


def test_it_has_no_work_of_its_own_at_load() -> None:
    """Only the compiler's own entries of .init_array and .fini_array, no TLS."""
    output = subprocess.run(
        ["readelf", "-dlW", harness.shim()], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    sizes = re.findall(r"\((?:INIT|FINI)_ARRAYSZ\)\s+(\d+)", output)
    assert sizes and all(int(size) <= 8 for size in sizes)
    assert "TLS" not in output


@pytest.mark.parametrize("level", ["0", None])
def test_ordinary_programs_notice_nothing(container: Make, level: str | None) -> None:
    box = container(GIB)
    environment = dict(box.environment)
    if level is not None:
        environment["LIBCUDA_LOG_LEVEL"] = level
    del environment["LD_LIBRARY_PATH"]
    code = (
        "import os, subprocess, threading\n"
        "print(sorted(os.listdir('/proc/self/fd')), threading.active_count())\n"
        "print(len(os.listdir('/proc/self/task')))\n"
        "print(subprocess.run(['/bin/echo', 'x'], capture_output=True))\n"
    )
    ours = run([sys.executable, "-c", code], environment)
    plain = run([sys.executable, "-c", code], {})
    assert (ours.stdout, ours.stderr) == (plain.stdout, "")


def test_silent_by_default_and_a_line_each_when_asked(gibibyte: Container) -> None:
    for level, expected in (("", ""), ("1", "allocation of 2147483648 bytes refused")):
        with gibibyte.start(LIBCUDA_LOG_LEVEL=level) as program:
            program("context()")
            program("alloc(2 * GIB)")
            _, errors = program.finish()
            assert expected in errors
            assert len(errors.splitlines()) == (1 if expected else 0)


def test_import_of_many_modules(gibibyte: Container) -> None:
    """The loader's own way through us: hundreds of dlopen and dlsym."""
    code = "import ssl, sqlite3, ctypes, json, decimal, asyncio; print(ssl.OPENSSL_VERSION[:7])"
    done = run([sys.executable, "-c", code], dict(gibibyte.environment))
    assert (done.stdout, done.stderr) == ("OpenSSL\n", "")


def test_bench_runs(gibibyte: Container, tmp_path: Path) -> None:
    """The cost of a pair of calls, printed for people: no number is asserted."""
    program = tmp_path / "bench"
    driver = gibibyte.driver / "libcuda.so.1"
    command = ["gcc", "-O2", HERE / "bench.c", driver, "-o", program]
    subprocess.run(command, check=True, timeout=240)
    for box in (gibibyte, gibibyte.without_library()):
        done = run([str(program), "100"], dict(box.environment))
        result = json.loads(done.stdout)
        assert result["pairs"] == 100
        assert result["ns_per_pair"] > 0
