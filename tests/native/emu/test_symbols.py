"""Exports, cuGetProcAddress, and our declarations against NVIDIA's headers."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from emu_harness import Emulation, Worker

SOURCE = Path(__file__).parents[3] / "testbed/native/emu"


@dataclass(frozen=True)
class Symbol:
    kind: str
    base: str
    since: int
    name: str


def table() -> list[Symbol]:
    text = (SOURCE / "symbols.def").read_text()
    found = re.findall(r"^([FPNT])\((\w+), (\d+), (\w+)", text, re.MULTILINE)
    return [Symbol(kind, base, int(since), name) for kind, base, since, name in found]


def test_table_is_sorted_and_exported(emulation: Emulation) -> None:
    symbols = table()
    assert len(symbols) > 600
    assert [s.base for s in symbols] == sorted(s.base for s in symbols)
    for before, after in itertools.pairwise(symbols):
        if before.base == after.base and (before.kind in "PT") == (after.kind in "PT"):
            assert before.since < after.since
    library = emulation.root / "driver" / "libcuda.so.1"
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    exported = {line.split()[-1] for line in lines if "__odr_asan" not in line}
    names = {s.name for s in symbols}
    assert names <= exported
    assert exported - names <= {"vgpuEmuOwnSlot", "vgpu_emulation_mark"}


def test_marked_as_an_emulation(emulation: Emulation) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        assert b"not NVIDIA software" in (emulation.root / "driver" / name).read_bytes()


ASK = """
    library = ctypes.CDLL('libcuda.so.1')
    def ask(name, version, flags=0):
        pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = library.cuGetProcAddress_v2(name.encode(), ctypes.byref(pointer), version,
                                           ctypes.c_uint64(flags), ctypes.byref(status))
        found = ''
        for candidate in [name] + [name + '_v%d' % n for n in (2, 3, 4)] + [
                name + '_ptsz', name + '_ptds', name + '_v2_ptsz', name + '_v2_ptds']:
            if hasattr(library, candidate) and pointer.value:
                if ctypes.cast(getattr(library, candidate), ctypes.c_void_p).value == pointer.value:
                    found = candidate
        return [code, status.value, found]
"""


def test_versions_of_a_name(emulation: Emulation) -> None:
    worker = emulation.start()
    worker(ASK)
    for name, version, flags, expected in [
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuCtxGetDevice", 12000, 0, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"),
        ("cuCtxSynchronize", 12080, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuStreamGetCaptureInfo", 11030, 0, "cuStreamGetCaptureInfo_v2"),
        ("cuStreamGetCaptureInfo", 12030, 0, "cuStreamGetCaptureInfo_v3"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuMemcpyHtoD", 13000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuLaunchKernel", 13000, 2, "cuLaunchKernel_ptsz"),
        ("cuLaunchKernel", 13000, 1, "cuLaunchKernel"),
        ("cuDeviceGet", 13000, 2, "cuDeviceGet"),  # no twin: the only one
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
    ]:
        assert worker(f"ask({name!r}, {version}, {flags})") == [0, 0, expected], name
    assert worker("ask('cuMemAllocAsync', 11010)") == [500, 2, ""]  # too old
    assert worker("ask('cuNoSuchThing', 13000)") == [500, 1, ""]
    assert worker("ask('cuLogsRegisterCallback', 13000)[:2]") == [0, 0]


def test_not_implemented(worker: Worker) -> None:
    assert worker("raw('cuTexObjectCreate')(None, None, None, None)") == 801
    assert worker("raw('cuMemAlloc')(None, 4)") == 801  # 32-bit pointers


def test_twins_are_the_same_function(worker: Worker) -> None:
    worker("p = call('cuMemAlloc', 64)")
    worker("raw('cuMemcpyHtoD_v2_ptds')(ctypes.c_uint64(int(p)), b'twin', ctypes.c_size_t(4))")
    assert worker("download(p, 4).decode()") == "twin"


def test_error_texts(worker: Worker) -> None:
    assert worker("call('cuGetErrorName', driver.CUresult(2)).decode()") == (
        "CUDA_ERROR_OUT_OF_MEMORY"
    )
    assert worker("call('cuGetErrorString', driver.CUresult(2)).decode()") == "out of memory"


def test_no_undocumented_table(worker: Worker) -> None:
    worker("table = ctypes.c_void_p(1)")
    assert worker("raw('cuGetExportTable')(ctypes.byref(table), bytes(16))") == 500
    assert worker("table.value") is None


def test_errno_is_kept(worker: Worker) -> None:
    worker("""
        library = ctypes.CDLL('libcuda.so.1', use_errno=True)
        p = ctypes.c_uint64()
        ctypes.set_errno(77)
        codes = [library.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n))
                 for n in (4096, 1 << 44, 1 << 45)]
        library.cuMemFree_v2(p)
        kept = ctypes.get_errno()
    """)
    assert worker("codes, kept") == [[0, 2, 2], 77]


# --- against NVIDIA's headers, where a wheel or a toolkit brought them -------------------


@pytest.fixture(scope="module")
def headers() -> Path:
    named = os.environ.get("CUDA_HEADERS")
    places = [Path(named)] if named else []
    places.append(Path("/usr/local/cuda/include"))
    try:
        import nvidia

        places += [Path(p) / "cu13" / "include" for p in nvidia.__path__]
    except ImportError:
        pass
    for place in places:
        if (place / "cuda.h").exists():
            return place
    pytest.skip("no cuda.h here (set CUDA_HEADERS to its folder)")


def _compile(source: str, folder: Path, *flags: str) -> None:
    path = folder / "check.c"
    path.write_text(source)
    done = subprocess.run(
        ["cc", "-std=gnu11", "-c", *flags, str(path), "-o", str(folder / "check.o")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_prototypes_are_nvidias(headers: Path, tmp_path: Path) -> None:
    source = f"""
        #define __CUDA_API_VERSION_INTERNAL
        #include <cuda.h>
        #define F(base, since, symbol, arguments) CUresult CUDAAPI symbol arguments;
        #define P(base, since, symbol, target)
        #define N(base, since, symbol)
        #define T(base, since, symbol)
        #include "{SOURCE}/symbols.def"
    """
    _compile(source, tmp_path, f"-I{headers}")


def test_values_and_layouts_are_nvidias(headers: Path, tmp_path: Path) -> None:
    ours = (SOURCE / "abi.h").read_text()
    values = re.findall(r"^ +(CU\w+) = (\d+)", ours, re.MULTILINE)
    values += re.findall(r"typedef enum \w+ \{ (CU\w+) = (\d+) \}", ours)
    assert len(values) > 150
    structs = re.findall(r"^\} (CU\w+);", ours, re.MULTILINE)
    structs = [s for s in structs if f"enum {s}" not in ours]
    asserts = [f'_Static_assert({name} == {value}, "{name}");' for name, value in values]
    # Sizes come out of each header as the size of an array in an object file.
    sizes = [f"char size_of_{name}[sizeof({name})];" for name in structs]
    _compile("#include <cuda.h>\n" + "\n".join(asserts + sizes), tmp_path, f"-I{headers}")
    theirs = _sizes(tmp_path / "check.o")
    _compile('#include "abi.h"\n' + "\n".join(sizes), tmp_path, f"-I{SOURCE}")
    assert _sizes(tmp_path / "check.o") == theirs
    assert "CUDA_MEMCPY3D" in structs and "CUmemPoolProps" in structs


def _sizes(path: Path) -> dict[str, int]:
    text = subprocess.run(["nm", "-S", str(path)], capture_output=True, text=True, check=True)
    rows = (line.split() for line in text.stdout.splitlines())
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4}
