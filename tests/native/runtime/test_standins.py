"""Stand-ins: what the generator makes of a torch's symbols, and what the result does."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.errors import MissingTool, TestbedError
from testbed.native import standins
from testbed.native.standins.build import _compile
from testbed.native.standins.elf import Dynamic, Symbol, read
from testbed.native.standins.families import FAMILIES, Versions
from testbed.native.standins.generate import Plan, make_plan

VERSIONS = Versions(toolkit=(13, 2), cudnn=(9, 26, 0), nccl=(2, 30, 7), nvshmem=(3, 7, 2))
CUDART = "libcudart.so.13"


def torch(*imports: Symbol, needed: tuple[str, ...] = (), exports: tuple[str, ...] = ()) -> Plan:
    libraries = {s.library for s in imports if s.library} | {CUDART, *needed}
    own = Dynamic(needed=tuple(libraries), imports=imports, exports=frozenset(exports))
    return make_plan({Path("libtorch_cuda.so"): own}, VERSIONS)


def test_versions_come_from_the_wheels_metadata() -> None:
    text = (
        "Name: torch\n"
        'Requires-Dist: cuda-toolkit[cublas,cudart]==13.2.2; platform_system == "Linux"\n'
        'Requires-Dist: nvidia-cudnn-cu13==9.26.0.51; platform_system == "Linux"\n'
        "Requires-Dist: nvidia-nccl-cu13==2.30.7\n"
        "Requires-Dist: nvidia-nvshmem-cu13==3.7.2\n"
    )
    assert Versions.of(text) == VERSIONS
    assert VERSIONS.cublas == 130400
    assert Versions.of("Name: torch\n").cudnn == (0, 0, 0)


def test_each_symbol_goes_to_the_library_that_it_was_linked_against() -> None:
    plan = torch(
        Symbol("cublasCreate_v2", "libcublas.so.13", "libcublas.so.13"),
        Symbol("cudaMalloc", CUDART, CUDART),
        Symbol("cusparseLtInit"),
        Symbol("cusparseCreate", "libcusparse.so.12", "libcusparse.so.12"),
        Symbol("ncclAllReduce"),
        Symbol("ncclOfTorch"),
        Symbol("nvshmem_init", weak=True),
        Symbol("memcpy", "GLIBC_2.14", "libc.so.6"),
        needed=("libcusparseLt.so.0", "libnccl.so.2", "libcuda.so.1", "libc.so.6"),
        exports=("ncclOfTorch",),
    )
    assert plan.runtime == {"cudaMalloc"} and plan.runtime_soname == CUDART
    sources = {s.soname: s for s in plan.sources}
    assert set(sources) == {
        "libcublas.so.13", "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2"
    }  # fmt: skip
    assert "UNSUPPORTED(cusparseLtInit, 10)" in sources["libcusparseLt.so.0"].c
    assert "cusparseLt" not in sources["libcusparse.so.12"].c
    assert sources["libnccl.so.2"].size == 1
    assert sources["libcublas.so.13"].version_script.startswith("libcublas.so.13 {")


def test_an_unknown_library_of_the_vendor_is_named() -> None:
    with pytest.raises(TestbedError, match=r"libcunew\.so\.1"):
        torch(needed=("libcunew.so.1",))


def test_a_torch_without_cuda_is_refused() -> None:
    own = Dynamic(needed=("libc.so.6",), imports=(), exports=frozenset())
    with pytest.raises(TestbedError, match="does not link the CUDA runtime"):
        make_plan({Path("libtorch_cpu.so"): own}, VERSIONS)


def test_no_torch(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no torch"):
        standins.build(tmp_path, tmp_path / "runtime", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02\x01" + bytes(90)])
def test_a_file_that_is_no_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "torch" / "lib" / "libtorch.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(TestbedError, match=r"cannot read the symbols of libtorch\.so"):
        standins.build(tmp_path, tmp_path / "runtime", tmp_path / "out")


@pytest.fixture(scope="module")
def small_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("small")
    (folder / "a.c").write_text('#include <stdlib.h>\nchar *a(void) { return getenv("x"); }')
    gcc("-shared", "-o", "liba.so", "a.c", cwd=folder)
    return (folder / "liba.so").read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_library_is_an_error_or_is_read(
    small_library: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    """Never another exception; a loop without an end meets the test's own deadline."""
    damaged = bytearray(small_library)
    # Most of the file is code: the header, and the tables that it names, are what matters.
    tables = int.from_bytes(small_library[0x28:0x30], "little")
    positions = st.one_of(
        st.integers(0, 0x40), st.integers(0x40, 0x1000), st.integers(tables, len(damaged) - 1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(positions)] = data.draw(st.integers(0, 255))
    length = data.draw(st.sampled_from([len(damaged), len(damaged) // 2, 100]))
    path = tmp_path / "damaged.so"
    path.write_bytes(damaged[:length])
    with contextlib.suppress(TestbedError):
        assert read(path).exports is not None


def fake_torch(folder: Path, functions: str) -> Path:
    """A site-packages with a library that calls functions of libraries that are not there."""
    lib = folder / "torch" / "lib"
    lib.mkdir(parents=True)
    info = folder / "torch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Requires-Dist: nvidia-cudnn-cu13==9.26.0.51\n")
    scratch = folder / "scratch"
    scratch.mkdir()
    for soname, name in (("libcudnn.so.9", "cudnnCreate"), (CUDART, functions)):
        (scratch / "v.map").write_text(f"{soname} {{ global: *; }};")
        (scratch / "v.c").write_text(f"int {name}(void) {{ return 0; }}")
        gcc("-shared", f"-Wl,-soname,{soname}", "-Wl,--version-script=v.map",
            "-o", soname, "v.c", cwd=scratch)  # fmt: skip
    (scratch / "t.c").write_text(
        f"int cudnnCreate(void **); int {functions}(void);"
        f"int t(void) {{ return cudnnCreate(0) + {functions}(); }}"
    )
    gcc("-shared", "-o", lib / "libtorch_cuda.so", "t.c", "libcudnn.so.9", CUDART, cwd=scratch)
    return folder


def gcc(*arguments: object, cwd: Path) -> None:
    subprocess.run(["gcc", "-fPIC", *map(str, arguments)], cwd=cwd, check=True, timeout=240)


def test_a_real_library_is_read_and_served(tmp_path: Path, runtime_library: Path) -> None:
    site = fake_torch(tmp_path / "site", "cudaPeekAtLastError")
    found = read(site / "torch" / "lib" / "libtorch_cuda.so")
    assert Symbol("cudnnCreate", "libcudnn.so.9", "libcudnn.so.9") in found.imports
    assert "t" in found.exports and {"libcudnn.so.9", CUDART} <= set(found.needed)
    made = standins.build(site, runtime_library, tmp_path / "out")
    assert made == (CUDART, "libcudnn.so.9")
    # The loader checks names and version nodes of all symbols: RTLD_NOW.
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes, sys, os;"
         "print(ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW).t())",
         site / "torch" / "lib" / "libtorch_cuda.so"],
        env={"LD_LIBRARY_PATH": str(tmp_path / "out"), "LD_BIND_NOW": "1", "VGPU_EMU_LOG": "off"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    # CUDNN_STATUS_BAD_PARAM_NULL_POINTER, and no error yet.
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2002 + 0
    assert done.stderr == ""


def test_a_runtime_function_that_we_lack_is_named(tmp_path: Path, runtime_library: Path) -> None:
    site = fake_torch(tmp_path / "site", "cudaNewFunction")
    with pytest.raises(TestbedError, match="it imports cudaNewFunction"):
        standins.build(site, runtime_library, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="no C compiler") as caught:
        standins.compiler()
    assert "apt-get install gcc" in caught.value.hint


def compiled(folder: Path, *symbols: Symbol, needed: tuple[str, ...] = ()) -> Path:
    (source,) = torch(*symbols, needed=needed).sources
    _compile(standins.compiler(), source, folder, folder)
    return folder / source.soname


def versioned(name: str, library: str) -> Symbol:
    return Symbol(name, library, library)


def test_versions_that_programs_ask_for(tmp_path: Path) -> None:
    cudnn = ctypes.CDLL(
        str(
            compiled(
                tmp_path,
                *(
                    versioned(n, "libcudnn.so.9")
                    for n in ("cudnnGetVersion", "cudnnGetProperty", "cudnnGetErrorString")
                ),
            )
        )
    )
    assert cudnn.cudnnGetVersion() == 92600
    value = ctypes.c_int()
    found = []
    for kind in range(3):
        assert cudnn.cudnnGetProperty(kind, ctypes.byref(value)) == 0
        found.append(value.value)
    assert found == [9, 26, 0]
    assert cudnn.cudnnGetProperty(3, ctypes.byref(value)) != 0
    cudnn.cudnnGetErrorString.restype = ctypes.c_char_p
    assert b"not emulated in this version" in cudnn.cudnnGetErrorString(3000)
    assert cudnn.cudnnGetErrorString(0) == b"CUDNN_STATUS_SUCCESS"


def test_nccl_version(tmp_path: Path) -> None:
    path = compiled(tmp_path, Symbol("ncclGetVersion"), needed=("libnccl.so.2",))
    value = ctypes.c_int()
    assert ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(value)) == 0
    assert value.value == 23007


@pytest.mark.parametrize(
    ("level", "lines"), [("", 1), ("off", 0), ("OFF", 0), ("error", 1), ("debug", 3)]
)
def test_says_once_what_is_missing(tmp_path: Path, level: str, lines: int) -> None:
    path = compiled(tmp_path, versioned("cusparseCreate", "libcusparse.so.12"))
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes, sys; l = ctypes.CDLL(sys.argv[1])\n"
         "print([l.cusparseCreate(None) for _ in range(3)])", path],
        env={"VGPU_EMU_LOG": level} if level else {},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.strip() == "[10, 10, 10]", done.stderr
    said = [line for line in done.stderr.splitlines() if "not emulated in this version" in line]
    assert len(said) == lines
    assert all("cusparseCreate of cuSPARSE is" in line for line in said)


def test_every_special_function_compiles_without_a_warning(tmp_path: Path) -> None:
    """The product compiles without -Werror, on compilers that we do not know."""
    symbols = [Symbol(n) for f in FAMILIES for n in (*f.special, f"{f.prefix}Anything")]
    plan = torch(*symbols, needed=tuple(f"{f.soname}.1" for f in FAMILIES))
    assert len(plan.sources) == len(FAMILIES)
    for source in plan.sources:
        path = tmp_path / f"{source.soname}.c"
        path.write_text(source.c)
        folder = Path(standins.__file__).parent
        done = subprocess.run(
            ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             f"-I{folder}", path, *(folder / name for name in source.written)],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
