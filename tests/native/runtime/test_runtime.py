"""libcudart.so.13 on a driver that counts: what it asks for, and when."""

from __future__ import annotations

import ctypes.util
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.native.standins.elf import read

Script = Callable[..., str]
SOURCES = Path(__file__).parents[3] / "testbed" / "native" / "runtime"


def test_exports_carry_the_vendors_version_node_and_nothing_else(runtime_library: Path) -> None:
    exports = read(runtime_library).exports
    assert {"cudaMalloc", "__cudaRegisterFatBinary", "cudaGetDriverEntryPointByVersion"} <= exports
    strange = {n for n in exports if not re.match(r"_*cuda", n)}
    assert strange == {"vgpu_emulation_mark", "libcudart.so.13"}
    assert b"emulation, not NVIDIA" in runtime_library.read_bytes()


def test_reaches_the_driver_only_by_dlsym(runtime_library: Path) -> None:
    found = read(runtime_library)
    assert not [s.name for s in found.imports if re.match(r"cu[A-Z]", s.name)]
    assert {"dlopen", "dlsym"} <= {s.name for s in found.imports}
    assert not [n for n in found.needed if "cuda" in n]


def test_counting_devices_makes_no_context(script: Script) -> None:
    out = script("""
n = c.c_int(-1)
assert rt.cudaGetDeviceCount(c.byref(n)) == 0 and n.value == 2
assert rt.cudaGetDevice(c.byref(n)) == 0 and n.value == 0
assert rt.cudaRuntimeGetVersion(c.byref(n)) == 0 and n.value == 13020
assert rt.cudaDriverGetVersion(c.byref(n)) == 0 and n.value == 13020
print(log())
""")
    assert out.strip() == "['init 0']"


def test_first_allocation_retains_the_primary_context_once(script: Script) -> None:
    out = script("""
p = pointer()
assert rt.cudaMalloc(c.byref(p), 4096) == 0 and p.value
assert rt.cudaMalloc(c.byref(p), 8192) == 0
print(log())
""")
    assert out.strip() == "['init 0', 'retain 0', 'current 0', 'alloc 4096', 'alloc 8192']"


def test_each_thread_has_its_own_device(script: Script) -> None:
    out = script("""
import threading
n = c.c_int(-1)
assert rt.cudaSetDevice(1) == 0
seen = []
def other():
    m = c.c_int(-1)
    rt.cudaGetDevice(c.byref(m)); seen.append(m.value)
    rt.cudaFree(None); rt.cudaGetDevice(c.byref(m)); seen.append(m.value)
t = threading.Thread(target=other); t.start(); t.join()
rt.cudaGetDevice(c.byref(n))
print(n.value, seen, log())
""")
    assert out.strip() == ("1 [0, 0] ['init 0', 'retain 1', 'current 1', 'retain 0', 'current 0']")


def test_a_context_that_the_program_set_decides_the_device(script: Script) -> None:
    out = script("""
n = c.c_int(-1)
f, ctx = pointer(), pointer()
for name in (b"cuDevicePrimaryCtxRetain", b"cuCtxSetCurrent"):
    assert entry_point(name, f) == 0
    if name == b"cuDevicePrimaryCtxRetain":
        c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int)(f.value)(c.addressof(ctx), 1)
    else:
        c.CFUNCTYPE(c.c_int, c.c_void_p)(f.value)(ctx)
rt.cudaGetDevice(c.byref(n)); print(n.value)
rt.cudaFree(None); print(log())
""")
    # cudaFree finds a context and makes no other.
    assert out.split("\n")[:2] == ["1", "['init 0', 'retain 1', 'current 1']"]


@pytest.mark.parametrize(
    ("driver", "runtime", "name"),
    [
        (2, 2, "cudaErrorMemoryAllocation"),
        (1, 1, "cudaErrorInvalidValue"),
        (201, 201, "cudaErrorDeviceUninitialized"),
        (400, 400, "cudaErrorInvalidResourceHandle"),
        (700, 700, "cudaErrorIllegalAddress"),
        (801, 801, "cudaErrorNotSupported"),
        (202, 999, "cudaErrorUnknown"),  # CONTEXT_ALREADY_CURRENT: the runtime has none
        (916, 999, "cudaErrorUnknown"),
        (123456, 999, "cudaErrorUnknown"),
    ],
)
def test_driver_errors_become_the_runtime_errors(
    script: Script, driver: int, runtime: int, name: str
) -> None:
    out = script(f"""
p = pointer()
rt.cudaFree(None)
fake("fake_result").value = {driver}
e = rt.cudaMalloc(c.byref(p), 4096)
print(e, rt.cudaGetErrorName(e).decode(), p.value)
""")
    assert out.split() == [str(runtime), name, "None"]


def test_unfinished_work_is_no_error(script: Script) -> None:
    script("""
rt.cudaFree(None)
stream, event = at(16), at(32)
queries = (rt.cudaStreamQuery, stream), (rt.cudaEventQuery, event)
fake("fake_result").value = 600
assert [f(x) for f, x in queries] == [600, 600]
assert rt.cudaPeekAtLastError() == 0
# An earlier error is not lost by asking.
fake("fake_result").value = 2
assert rt.cudaMalloc(c.byref(pointer()), 64) == 2
fake("fake_result").value = 600
assert [f(x) for f, x in queries] == [600, 600]
assert rt.cudaPeekAtLastError() == 2
# A real error of a query is one.
fake("fake_result").value = 700
assert [f(x) for f, x in queries] == [700, 700]
assert rt.cudaGetLastError() == 700
""")


def test_last_error_stays_until_it_is_taken_and_is_the_threads_own(script: Script) -> None:
    script("""
import threading
p = pointer()
rt.cudaFree(None)
fake("fake_result").value = 2
assert rt.cudaMalloc(c.byref(p), 1) == 2
fake("fake_result").value = 0
assert rt.cudaMalloc(c.byref(p), 1) == 0          # a success does not clear it
assert rt.cudaPeekAtLastError() == 2
seen = []
t = threading.Thread(target=lambda: seen.append(rt.cudaPeekAtLastError())); t.start(); t.join()
assert seen == [0], seen
assert rt.cudaGetLastError() == 2 and rt.cudaGetLastError() == 0
""")


def test_a_context_that_cannot_be_made_fails_the_call_and_is_tried_again(script: Script) -> None:
    script("""
p = pointer()
fake("fake_result").value = 2
assert rt.cudaMalloc(c.byref(p), 1) == 2 and not any(l.startswith("alloc") for l in log())
fake("fake_result").value = 0
assert rt.cudaMalloc(c.byref(p), 1) == 0
assert log().count("retain 0") == 2
""")


def test_empty_and_null(script: Script) -> None:
    script("""
p = c.c_void_p(5)
assert rt.cudaMalloc(c.byref(p), 0) == 0 and p.value is None
assert rt.cudaMalloc(None, 4) == 1
assert rt.cudaFree(None) == 0 and rt.cudaFreeHost(None) == 0
assert rt.cudaMemcpy(None, None, 0, 1) == 0
assert rt.cudaMemcpy(None, None, 4, 9) == 21       # cudaErrorInvalidMemcpyDirection
assert rt.cudaSetDevice(2) == 101 and rt.cudaSetDevice(-1) == 101
assert rt.cudaGetDeviceCount(None) == 1
assert not any(l.startswith("alloc") for l in log())
""")


@pytest.mark.parametrize(
    ("set_up", "error"),
    [
        ('fake("fake_version").value = 12080', 35),  # cudaErrorInsufficientDriver
        ('fake("fake_devices").value = 0', 100),
        ('fake("fake_init_result").value = 100', 100),
        ('fake("fake_init_result").value = 3', 3),
    ],
)
def test_a_driver_that_does_not_start(script: Script, set_up: str, error: int) -> None:
    script(f"""
n = c.c_int(7)
{set_up}
assert rt.cudaGetDeviceCount(c.byref(n)) == {error} and n.value == 0
assert rt.cudaMalloc(c.byref(pointer()), 8) == {error}
assert rt.cudaGetLastError() == {error}
""")


def test_without_a_driver(script: Script, tmp_path: Path) -> None:
    if ctypes.util.find_library("cuda"):
        pytest.skip("this machine has a driver")
    prelude = 'import ctypes as c\nrt = c.CDLL("libcudart.so.13")\n'
    script(
        """
n = c.c_int(7)
assert rt.cudaGetDeviceCount(c.byref(n)) == 35 and n.value == 0
assert rt.cudaDriverGetVersion(c.byref(n)) == 0 and n.value == 0
""",
        driver=tmp_path,
        prelude=prelude,
    )


def test_a_function_that_the_driver_lacks(script: Script) -> None:
    script("""
name = (c.c_char * 128).in_dll(driver, "fake_missing"); name.value = b"cuMemFree"
assert rt.cudaFree(c.c_void_p(8)) == 36            # cudaErrorCallRequiresNewerDriver
f, status = c.c_void_p(1), c.c_int(9)
e = entry_point(b"cuMemFree", f, c.byref(status))
assert (e, f.value, status.value) == (0, None, 1)
""")


REGISTER = """
variable = getattr(rt, "__cudaRegisterVar")
wrapper = c.create_string_buffer(24)
image = c.c_void_p(getattr(rt, "__cudaRegisterFatBinary")(wrapper))
hosts = (c.c_char * 30000)()
base = c.addressof(hosts)
names = [f"k{i}".encode() for i in range(30000)]
for i in range(30000):
    register(image, at(base + i), names[i])
assert log() == []                                  # nothing is loaded before it is used
"""


def test_kernels_are_loaded_at_first_use_and_launched_as_kernels(script: Script) -> None:
    out = script(
        REGISTER
        + """
for i in (0, 29999, 0):
    assert launch(at(base + i), 3) == 0
k = pointer()
assert getattr(rt, "__cudaGetKernel")(c.byref(k), at(base + 5)) == 0 and k.value
assert launch(k, 9) == 0   # a handle
assert getattr(rt, "__cudaGetKernel")(c.byref(k), at(base + 30001)) == 98
assert launch(None, 3) == 98
print(log())
"""
    )
    start = ["init 0", "retain 0", "current 0", "load 1", "kernel 1", "launch 1 3"]
    rest = ["kernel 1", "launch 1 3", "launch 1 3", "kernel 1", "launch 1 9"]
    assert out.strip() == str(start + rest)


def test_symbols(script: Script) -> None:
    script(
        REGISTER
        + """
host = c.create_string_buffer(8)
variable(image, host, None, b"v", 0, c.c_size_t(16), 0, 0)
p, data = pointer(), b"0123456789abcdef"
assert rt.cudaGetSymbolAddress(c.byref(p), host) == 0 and p.value
assert rt.cudaGetSymbolAddress(c.byref(p), c.c_void_p(16)) == 13
send = rt.cudaMemcpyToSymbol
assert send(host, data, c.c_size_t(4), c.c_size_t(12), 1) == 0 and log()[-1] == "htod 12 4"
assert send(host, data, c.c_size_t(5), c.c_size_t(12), 1) == 1     # past its end
assert send(host, data, c.c_size_t(4), c.c_size_t(2**64 - 2), 1) == 1
assert send(host, data, c.c_size_t(4), c.c_size_t(0), 2) == 21
"""
    )


def test_call_configuration_is_a_stack(script: Script) -> None:
    script("""
push, pop = getattr(rt, "__cudaPushCallConfiguration"), getattr(rt, "__cudaPopCallConfiguration")
g, b, s, st = dim3(), dim3(), c.c_size_t(), pointer()
for i in range(16):
    assert push(dim3(i, 1, 1), dim3(1, i, 1), c.c_size_t(i), c.c_void_p(i)) == 0
assert push(dim3(1, 1, 1), dim3(1, 1, 1), c.c_size_t(0), None) != 0
for i in reversed(range(16)):
    assert pop(c.byref(g), c.byref(b), c.byref(s), c.byref(st)) == 0
    assert (g.x, b.y, s.value, st.value or 0) == (i, i, i, i)
assert pop(c.byref(g), c.byref(b), c.byref(s), c.byref(st)) == 9
""")


def test_fork_while_another_thread_registers(script: Script) -> None:
    """The child must not inherit a lock that nobody will release."""
    script(
        REGISTER
        + """
import threading
stop = False
def busy():
    i = 0
    while not stop:
        register(image, at(base + i % 30000), names[0])
        i += 1
t = threading.Thread(target=busy); t.start()
try:
    for _ in range(50):
        pid = os.fork()
        if not pid:
            import signal; signal.alarm(10)
            ok = launch(at(base), 1)
            os._exit(ok)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
finally:
    stop = True; t.join()
"""
    )


# libasan looks up RTLD_NEXT through dlsym itself, which this simple shim does not survive.
@pytest.mark.parametrize("script", ["plain"], indirect=True)
def test_a_preloaded_library_sees_every_call(script: Script, tmp_path: Path) -> None:
    """As on hardware: overriding dlsym is enough, since all else goes through what it gave."""
    source = tmp_path / "shim.c"
    source.write_text(r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
static void *(*real)(void *, const char *);
static int (*get)(const char *, void **, int, uint64_t, int *);
static int (*alloc)(void **, size_t);
static int my_alloc(void **p, size_t n) { if (n > 100) return 2; return alloc(p, n); }
static int my_get(const char *s, void **f, int v, uint64_t fl, int *st)
{
    int r = get(s, f, v, fl, st);
    if (!strcmp(s, "cuMemAlloc")) { alloc = *f; *f = my_alloc; }
    return r;
}
void *dlsym(void *h, const char *s)
{
    if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *f = real(h, s);
    if (!strcmp(s, "cuGetProcAddress_v2")) { get = f; return my_get; }
    return f;
}
""")
    shim = tmp_path / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", shim, source], check=True, timeout=240)
    script(
        """
p = pointer()
assert rt.cudaMalloc(c.byref(p), 100) == 0 and rt.cudaMalloc(c.byref(p), 101) == 2
assert log().count("alloc 100") == 1 and "alloc 101" not in log()
""",
        LD_PRELOAD=str(shim),
    )


def test_every_function_of_the_table_is_used() -> None:
    text = (SOURCES / "driver.h").read_text()
    table = re.findall(r"^    X\((cu\w+), (\d+),", text, re.MULTILINE)
    assert len(table) == len({name for name, _ in table}) > 90
    used = "\n".join(p.read_text() for p in SOURCES.glob("*.c"))
    assert [name for name, _ in table if f"driver.{name}" not in used] == []
