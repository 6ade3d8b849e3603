"""The written stand-ins on a driver that keeps what is launched: costs by hand, statuses."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.native import standins
from testbed.native.standins.families import FAMILIES

HERE = Path(__file__).parent
SOURCES = Path(standins.__file__).parent
FP32, TF32, FP16, FP64, INT8 = range(5)
#: cudaDataType and cudnnDataType_t.
R_32F, R_64F, R_16F, R_8I, C_32F, R_16BF = 0, 1, 2, 3, 4, 14
COMPUTE_32F, COMPUTE_64F, FAST_TF32, FAST_16BF = 68, 70, 77, 75

PRELUDE = """
import ctypes as c, json, struct
driver, blas, lt, dnn = (c.CDLL(n) for n in (
    "libcuda.so.1", "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9"))
def fake(name):
    return c.c_int.in_dll(driver, name)
def log():
    return (c.c_char * (1 << 20)).in_dll(driver, "fake_log").value.decode().splitlines()
def say(**more):
    lines = [l.split() for l in log()]
    print(json.dumps({"launches": [[n, *map(int, r)] for n, *r in lines], **more}))
def ref(value):
    return c.byref(value)
def p(value=0):
    return c.c_void_p(value)
def q(value):
    return c.c_longlong(value)
def f32(value):
    return ref(c.c_float(value))
def f64(value):
    return ref(c.c_double(value))
one, zero = f32(1), f32(0)
def handle(library=blas, create="cublasCreate_v2", stream="cublasSetStream_v2"):
    h = c.c_void_p()
    assert getattr(library, create)(ref(h)) == 0 and h.value
    assert getattr(library, stream)(h, p(77)) == 0
    return h
"""


@dataclass(frozen=True)
class Launch:
    name: str
    blocks: int
    threads: int
    stream: int
    flops: int
    bytes: int
    precision: int


@dataclass(frozen=True)
class Said:
    launches: list[Launch]
    values: dict[str, Any]

    @property
    def only(self) -> Launch:
        (launch,) = self.launches
        return launch


Run = Callable[[str], Said]


def compile_c(target: Path, *arguments: object) -> None:
    flags = ["-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-g", "-O1"]
    subprocess.run(
        ["gcc", *flags, "-fvisibility=hidden", f"-Wl,-soname,{target.name}", "-o", target,
         *map(str, arguments)], check=True, timeout=120,
    )  # fmt: skip


@pytest.fixture(scope="session", params=["plain", "sanitized"])
def libraries(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, bool]:
    sanitized = request.param == "sanitized"
    folder = tmp_path_factory.mktemp("math")
    compile_c(folder / "libcuda.so.1", HERE / "fake_work_driver.c")
    extra = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if sanitized else []
    for family, soname in (
        ("libcublas.so", "libcublas.so.13"),
        ("libcublasLt.so", "libcublasLt.so.13"),
        ("libcudnn.so", "libcudnn.so.9"),
    ):
        (written,) = (f.written for f in FAMILIES if f.soname == family)
        # As in the product: the generated half is a file of its own.
        half = folder / f"{soname}.c"
        half.write_text(f'#define LIBRARY "{soname}"\n#include "standin.h"\n')
        compile_c(folder / soname, *extra, "-Wl,-Bsymbolic", f"-I{SOURCES}", half,
                  *(SOURCES / name for name in written))  # fmt: skip
    return folder, sanitized


@pytest.fixture
def run(libraries: tuple[Path, bool]) -> Run:
    folder, sanitized = libraries

    def run(text: str) -> Said:
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        if sanitized:
            found = subprocess.run(
                ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
            )
            env |= {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + text],
            capture_output=True, text=True, timeout=240, env=env,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        values = json.loads(done.stdout)
        return Said([Launch(*line) for line in values.pop("launches")], values)

    return run


# --- products ------------------------------------------------------------------------


def gemm_ex(m: int, n: int, k: int, kind: int, compute: int, beta: str = "zero") -> str:
    return (
        f"assert blas.cublasGemmEx(h, 0, 1, {m}, {n}, {k}, one, None, {kind}, {m}, None, {kind},"
        f" {n}, {beta}, None, {kind}, {m}, {compute}, -1) == 0\n"
    )


@pytest.mark.parametrize(
    ("kind", "compute", "math_mode", "size", "precision"),
    [
        (R_16F, COMPUTE_32F, 0, 2, FP16),
        (R_16BF, COMPUTE_32F, 0, 2, FP16),
        (R_32F, COMPUTE_32F, 0, 4, FP32),
        (R_32F, COMPUTE_32F, 3, 4, TF32),
        (R_32F, COMPUTE_32F, 3 | 16, 4, TF32),  # a flag beside the mode
        (R_32F, FAST_TF32, 0, 4, TF32),
        (R_32F, FAST_16BF, 0, 4, FP16),
        (R_32F, 69, 3, 4, FP32),  # pedantic
        (R_64F, COMPUTE_64F, 3, 8, FP64),
        (R_8I, 72, 0, 1, INT8),
        (28, COMPUTE_32F, 0, 1, INT8),  # fp8
    ],
)
def test_a_product_costs_its_arithmetic(
    run: Run, kind: int, compute: int, math_mode: int, size: int, precision: int
) -> None:
    m, n, k = 4096, 1000, 512
    launch = run(
        f"h = handle(); blas.cublasSetMathMode(h, {math_mode})\n"
        + gemm_ex(m, n, k, kind, compute, "f64(0)")
        + "say()"
    ).only
    assert launch.flops == 2 * m * n * k
    assert launch.bytes == size * (m * k + k * n + m * n)
    assert launch.precision == precision
    assert launch.stream == 77
    assert launch.blocks == 32 * 8  # tiles of 128
    assert launch.name.endswith("_2e9") and "matmul" in launch.name


def test_what_is_added_to_is_read_too(run: Run) -> None:
    said = run(
        "h = handle()\n"
        + gemm_ex(256, 256, 256, R_16F, COMPUTE_32F, "zero")
        + gemm_ex(256, 256, 256, R_16F, COMPUTE_32F, "one")
        # A factor on the card is not looked at.
        + "blas.cublasSetPointerMode_v2(h, 1)\n"
        + gemm_ex(256, 256, 256, R_16F, COMPUTE_32F, "p(16)")
        + "say()"
    )
    matrix = 2 * 256 * 256
    assert [launch.bytes for launch in said.launches] == [3 * matrix, 4 * matrix, 4 * matrix]


@pytest.mark.parametrize(
    ("letter", "size", "factor"), [("S", 4, 2), ("D", 8, 2), ("C", 8, 8), ("Z", 16, 8)]
)
def test_letters_and_batches(run: Run, letter: str, size: int, factor: int) -> None:
    m, n, k, batch = 96, 64, 32, 5
    common = f"0, 0, {m}, {n}, {k}, one"
    said = run(
        "h = handle(); z = c.create_string_buffer(16)\n"
        f"r = [blas.cublas{letter}gemm_v2(h, {common}, None, {m}, None, {k}, z, None, {m}),"
        f" blas.cublas{letter}gemmStridedBatched(h, {common}, None, {m}, q({m * k}), None, {k},"
        f" q({k * n}), z, None, {m}, q({m * n}), {batch}),"
        # one matrix A for all of them
        f" blas.cublas{letter}gemmStridedBatched(h, {common}, None, {m}, q(0), None, {k},"
        f" q({k * n}), z, None, {m}, q({m * n}), {batch}),"
        f" blas.cublas{letter}gemmBatched(h, {common}, None, {m}, None, {k}, z, None, {m},"
        f" {batch})]\n"
        "say(r=r)"
    )
    assert said.values["r"] == [0] * 4
    a, b, c = size * m * k, size * k * n, size * m * n
    assert [launch.bytes for launch in said.launches] == [
        a + b + c, batch * (a + b + c), a + batch * (b + c), batch * (a + b + c)
    ]  # fmt: skip
    assert [launch.flops for launch in said.launches] == [
        factor * m * n * k * times for times in (1, batch, batch, batch)
    ]
    precision = FP32 if letter in "SC" else FP64
    assert {launch.precision for launch in said.launches} == {precision}


def test_nothing_to_do_launches_nothing(run: Run) -> None:
    said = run("h = handle()\n" + gemm_ex(0, 8, 8, R_16F, COMPUTE_32F) + "say()")
    assert said.launches == []


def test_numbers_beyond_64_bits_stay_at_the_largest(run: Run) -> None:
    huge = 2**31 - 1
    launch = run("h = handle()\n" + gemm_ex(huge, huge, huge, R_16F, COMPUTE_32F) + "say()").only
    assert launch.flops == 2**64 - 1
    assert launch.blocks == 2**31 - 1


def test_matrix_and_vector_calls(run: Run) -> None:
    said = run("""
h = handle()
r = [blas.cublasSgemv_v2(h, 0, 300, 200, one, None, 300, None, 1, zero, None, 1),
     blas.cublasDgemv_v2(h, 1, 300, 200, f64(1), None, 300, None, 1, f64(0), None, 1),
     blas.cublasSscal_v2(h, 5000, one, None, 1),
     blas.cublasSaxpy_v2(h, 5000, one, None, 1, None, 1)]
x, y = c.c_float(9), c.c_double(9)
r += [blas.cublasSdot_v2(h, 1000, None, 1, None, 1, ref(x)),
      blas.cublasDotEx(h, 1000, None, 2, 1, None, 2, 1, ref(y), 2, 0)]
say(r=r, x=x.value, low=int.from_bytes(bytes(y)[:2], "little"))
""")
    assert said.values == {"r": [0] * 6, "x": 0.0, "low": 0}
    found = [(launch.flops, launch.bytes, launch.precision) for launch in said.launches]
    assert found == [
        (2 * 300 * 200, 4 * (300 * 200 + 300 + 200), FP32),
        (2 * 300 * 200, 8 * (300 * 200 + 300 + 200), FP64),
        (5000, 2 * 4 * 5000, FP32),
        (2 * 5000, 3 * 4 * 5000, FP32),
        (2 * 1000, 2 * 4 * 1000, FP32),
        (2 * 1000, 2 * 2 * 1000, FP32),
    ]
    assert "matmul" in said.launches[0].name and "memory" in said.launches[2].name


def test_triangular_solves(run: Run) -> None:
    said = run("""
h = handle()
r = [blas.cublasStrsm_v2(h, 0, 0, 0, 0, 100, 30, one, None, 100, None, 100),
     blas.cublasStrsm_v2(h, 1, 0, 0, 0, 100, 30, one, None, 100, None, 100),
     blas.cublasStrsmBatched(h, 0, 0, 0, 0, 100, 30, one, None, 100, None, 100, 4)]
say(r=r)
""")
    assert said.values["r"] == [0, 0, 0]
    assert [launch.flops for launch in said.launches] == [
        100 * 100 * 30, 30 * 30 * 100, 4 * 100 * 100 * 30
    ]  # fmt: skip


def test_statuses(run: Run) -> None:
    """A wrong call is refused and launches nothing; the driver's refusal is passed on."""
    said = run("""
h = handle()
gemm = lambda h, m, kind: blas.cublasGemmEx(h, 0, 0, m, 8, 8, one, None, kind, 8, None, kind, 8,
                                            zero, None, kind, 8, 68, -1)
r = [gemm(None, 8, 2), gemm(h, -1, 2), gemm(h, 8, 99), blas.cublasCreate_v2(None),
     blas.cublasGetMathMode(h, None), blas.cublasDestroy_v2(None)]
fake("fake_launch_result").value = 2
r.append(gemm(h, 8, 2))
fake("fake_launch_result").value = 0
mode = c.c_int(-1); stream = c.c_void_p()
blas.cublasSetMathMode(h, 3); blas.cublasGetMathMode(h, ref(mode))
blas.cublasGetStream_v2(h, ref(stream))
say(r=r, mode=mode.value, stream=stream.value, end=blas.cublasDestroy_v2(h))
""")
    assert said.values == {"r": [1, 7, 15, 7, 7, 1, 13], "mode": 3, "stream": 77, "end": 0}
    assert said.launches == []


def test_without_a_driver_there_is_no_handle(run: Run) -> None:
    said = run("""
fake("fake_init_result").value = 100
h = c.c_void_p(1)
say(blas=blas.cublasCreate_v2(ref(h)), h=h.value, dnn=dnn.cudnnCreate(ref(h)))
""")
    assert said.values == {"blas": 1, "h": None, "dnn": 1001}


def test_the_image_names_every_kernel_and_is_given_once_a_library(run: Run) -> None:
    said = run("""
h, other = handle(), handle()
for k in (1, 2, 3, 1000, 2**20, 2**30):
    for _ in range(3):
        assert blas.cublasSgemm_v2(h, 0, 0, 8, 8, k, one, None, 8, None, k, zero, None, 8) == 0
image = (c.c_char * (1 << 20)).in_dll(driver, "fake_image").value.decode()
say(loads=fake("fake_loads").value, lookups=fake("fake_lookups").value, image=image)
""")
    assert (said.values["loads"], said.values["lookups"]) == (1, 5)
    head, *lines = said.values["image"].splitlines()
    assert head == "VGPU-EMULATED-KERNELS 1"
    assert all(line.split()[1:] == ["work"] for line in lines)
    assert len(lines) == len(set(lines)) == 3 * 5 * 24
    depths = [launch.name.rsplit("_", 1)[1] for launch in said.launches[::3]]
    assert depths == ["2e0", "2e1", "2e1", "2e9", "2e20", "2e23"]


# --- cuBLASLt ------------------------------------------------------------------------


def test_lt_product(run: Run) -> None:
    said = run("""
h = handle()
d, pref = c.c_void_p(), c.c_void_p()
assert lt.cublasLtMatmulDescCreate(ref(d), 68, 0) == 0
op, long, batch = c.c_int(1), c.c_int64, c.c_int(7)
assert lt.cublasLtMatmulDescSetAttribute(d, 3, ref(op), c.c_size_t(4)) == 0
assert lt.cublasLtMatmulDescSetAttribute(d, 3, ref(op), c.c_size_t(2)) == 7
assert lt.cublasLtMatmulDescSetAttribute(d, 8, ref(c.c_void_p(64)), c.c_size_t(8)) == 0
m, n, k = 640, 384, 256
def layout(rows, columns, stride):
    l = c.c_void_p()
    assert lt.cublasLtMatrixLayoutCreate(ref(l), 14, long(rows), long(columns), long(rows)) == 0
    if stride is not None:
        assert lt.cublasLtMatrixLayoutSetAttribute(l, 5, ref(batch), c.c_size_t(4)) == 0
        assert lt.cublasLtMatrixLayoutSetAttribute(l, 6, ref(long(stride)), c.c_size_t(8)) == 0
    return l
assert lt.cublasLtMatmulPreferenceCreate(ref(pref)) == 0
assert lt.cublasLtMatmulPreferenceSetAttribute(pref, 1, ref(long(1 << 20)), c.c_size_t(8)) == 0
results, count = (c.c_char * 96)(*b"\\xff" * 96), c.c_int(-1)
r = []
for strides in ((None,) * 3, (k * m, k * n, m * n), (k * m, 0, m * n)):
    # A is transposed: k rows, m columns.
    a, b, out = (layout(*x) for x in ((k, m, strides[0]), (k, n, strides[1]), (m, n, strides[2])))
    r.append(lt.cublasLtMatmulAlgoGetHeuristic(h, d, a, b, out, out, pref, 1, results, ref(count)))
    r.append(lt.cublasLtMatmul(h, d, one, None, a, None, b, zero, p(64), out, p(64), out, results,
                               None, c.c_size_t(0), p(5)))
    for l in (a, b, out): lt.cublasLtMatrixLayoutDestroy(l)
workspace, state = struct.unpack_from("Qi", bytes(results), 64)
r += [lt.cublasLtMatmulDescDestroy(d), lt.cublasLtMatmulPreferenceDestroy(pref)]
say(r=r, count=count.value, workspace=workspace, state=state)
""")
    assert said.values == {"r": [0] * 8, "count": 1, "workspace": 0, "state": 0}
    m, n, k = 640, 384, 256
    a, b, c = 2 * m * k, 2 * k * n, 2 * m * n
    assert [launch.flops for launch in said.launches] == [
        2 * m * n * k * times for times in (1, 7, 7)
    ]
    assert [launch.bytes for launch in said.launches] == [
        a + b + c, 7 * (a + b + c), 7 * (a + c) + b
    ]  # fmt: skip
    assert {(launch.precision, launch.stream) for launch in said.launches} == {(FP16, 5)}


def test_lt_refuses(run: Run) -> None:
    said = run("""
h, d, l = handle(), c.c_void_p(), c.c_void_p()
lt.cublasLtMatmulDescCreate(ref(d), 68, 0)
lt.cublasLtMatrixLayoutCreate(ref(l), 99, c.c_int64(8), c.c_int64(8), c.c_int64(8))
def product(h, d, a):
    return lt.cublasLtMatmul(h, d, one, None, a, None, l, zero, None, l, None, l, None, None,
                             c.c_size_t(0), None)
say(r=[product(None, d, l), product(h, None, l), product(h, d, None), product(h, d, l)])
""")
    assert said.values["r"] == [1, 7, 7, 15] and said.launches == []


# --- cuDNN ------------------------------------------------------------------------

#: A graph as programs build it: descriptors, attributes, finalise.
GRAPH = """
I64, DESC, BOOL, TYPE, HANDLE = 3, 15, 2, 1, 0
TENSOR, GRAPH, HEUR, CONFIG, ENGINE, PLAN, PACK = 17, 15, 4, 3, 2, 5, 16
h = handle(dnn, "cudnnCreate", "cudnnSetStream")
def create(kind):
    d = c.c_void_p()
    assert dnn.cudnnBackendCreateDescriptor(kind, ref(d)) == 0
    return d
def put(d, name, kind, *values):
    t = {I64: c.c_int64, DESC: c.c_void_p, BOOL: c.c_bool, TYPE: c.c_int, HANDLE: c.c_void_p}[kind]
    values = [v.value if isinstance(v, c.c_void_p) else v for v in values]
    return dnn.cudnnBackendSetAttribute(d, name, kind, q(len(values)), (t * len(values))(*values))
def get(d, name, kind, room, values):
    n = c.c_int64(-1)
    status = dnn.cudnnBackendGetAttribute(d, name, kind, q(room), ref(n), values)
    return status, n.value
def finish(d):
    assert dnn.cudnnBackendFinalize(d) == 0
    return d
def drop(*all):
    for d in all:
        assert dnn.cudnnBackendDestroyDescriptor(d) == 0
def tensor(uid, kind, sizes, virtual=False, strides=None):
    d = create(TENSOR)
    assert put(d, 901, TYPE, kind) == 0 and put(d, 902, I64, *sizes) == 0
    assert put(d, 906, I64, uid) == 0 and put(d, 907, BOOL, virtual) == 0
    if strides: assert put(d, 903, I64, *strides) == 0
    return finish(d)
def operation(kind, **members):
    d = create(kind)
    for name, member in members.items():
        assert put(d, int(name[1:]), DESC, member) == 0
    return finish(d)
def graph(*operations):
    d = create(GRAPH)
    assert put(d, 800, HANDLE, h) == 0 and put(d, 801, DESC, *operations) == 0
    return finish(d)
def plans(g):
    heur = create(HEUR)
    assert put(heur, 201, DESC, g) == 0
    finish(heur)
    status, count = get(heur, 202, DESC, 0, None)
    assert status == 0
    configs = [create(CONFIG) for _ in range(count)]
    given = (c.c_void_p * count)(*[x.value for x in configs])
    assert get(heur, 202, DESC, count, given) == (0, count)
    made, notes = [], []
    for config in configs:
        engine, note = create(ENGINE), (c.c_int * 8)()
        assert get(config, 300, DESC, 1, (c.c_void_p * 1)(engine.value)) == (0, 1)
        status, n = get(engine, 1303, 11, 8, note)
        notes.append(list(note)[:n])
        plan = create(PLAN)
        assert put(plan, 400, HANDLE, h) == 0 and put(plan, 401, DESC, config) == 0
        made.append(finish(plan))
        drop(engine)
    drop(heur, *configs)
    return made, notes
def execute(plan):
    size = c.c_int64(-1)
    assert get(plan, 402, I64, 1, ref(size)) == (0, 1) and size.value == 0
    pack = finish(create(PACK))
    status = dnn.cudnnBackendExecute(h, plan, pack)
    drop(pack)
    return status
"""


@pytest.mark.parametrize(
    ("kind", "size", "precisions"),
    [(0, 4, [TF32, FP32]), (2, 2, [FP16, FP16]), (9, 2, [FP16, FP16]), (1, 8, [FP64, FP64])],
)
def test_convolution_forward_and_its_gradients(
    run: Run, kind: int, size: int, precisions: list[int]
) -> None:
    said = run(
        GRAPH
        + f"""
# 8 images, 32 channels to 64 in 2 groups, 3x3, 28x28 to 26x26
x, w, y = (tensor(i, {kind}, s) for i, s in enumerate(
    ([8, 32, 28, 28], [64, 16, 3, 3], [8, 64, 26, 26])))
operations = [operation(10, n704=x, n703=w, n705=y), operation(12, n710=x, n709=w, n711=y),
              operation(11, n716=x, n715=w, n717=y)]
graphs = [graph(o) for o in operations]
# As with the real library: what is inside may be destroyed by its maker.
drop(x, w, y, *operations)
notes = []
for g in graphs:
    made, found = plans(g)
    notes.append(found)
    drop(g)
    for plan in made:
        assert execute(plan) == 0
        drop(plan)
say(notes=notes)
"""
    )
    # Engine 0 says that it uses tensor cores, engine 1 does not.
    assert said.values["notes"] == [[[0], []]] * 3
    outputs = 8 * 64 * 26 * 26
    tensors = size * (8 * 32 * 28 * 28 + 64 * 16 * 9 + outputs)
    assert len(said.launches) == 6
    for launch in said.launches:
        assert launch.flops == 2 * outputs * 16 * 9
        assert launch.bytes == tensors
        assert launch.stream == 77 and "convolution" in launch.name
    assert [launch.precision for launch in said.launches] == precisions * 3
    depth = [launch.name.rsplit("2e", 1)[1] for launch in said.launches[::2]]
    products = outputs * 16 * 9
    assert depth == [
        str(int(math.log2(products // results)))
        for results in (outputs, 8 * 32 * 28 * 28, 64 * 16 * 9)
    ]


def test_tensors_inside_the_chip_are_not_moved(run: Run) -> None:
    """Convolution, bias, activation in one graph; a bias is repeated by a stride of 0."""
    said = run(
        GRAPH
        + """
x, w, y = (tensor(i, 2, s) for i, s in enumerate(([4, 8, 16, 16], [8, 8, 1, 1], [4, 8, 16, 16])))
inside = tensor(9, 0, [4, 8, 16, 16], virtual=True)
bias = tensor(10, 2, [4, 8, 16, 16], strides=[0, 1, 0, 0])
(plan, _), _ = plans(graph(operation(10, n704=x, n703=w, n705=inside),
                           operation(13, n751=inside, n752=bias, n753=y)))
say(status=execute(plan))
"""
    )
    launch = said.only
    assert launch.flops == 2 * (4 * 8 * 16 * 16) * 8
    assert launch.bytes == 2 * (2 * 4 * 8 * 16 * 16 + 8 * 8 + 8)


def test_attention_and_products_as_graphs(run: Run) -> None:
    b, heads, s, t, d = 2, 4, 128, 256, 64
    said = run(
        GRAPH
        + f"""
b, n, s, t, d = {b}, {heads}, {s}, {t}, {d}
query, out = tensor(1, 9, [b, n, s, d]), tensor(6, 9, [b, n, s, d])
key, value = tensor(2, 9, [b, n, t, d]), tensor(3, 9, [b, n, t, d])
kt, scores = tensor(4, 9, [b, n, d, t]), tensor(5, 9, [b, n, s, t], True)
for g in (graph(operation(19, n1520=query, n1521=kt, n1522=scores),
                operation(19, n1520=scores, n1521=value, n1522=out)),
          graph(operation(41, n2800=query, n2801=key, n2802=value, n2803=out)),
          graph(operation(43, n2851=query, n2852=key, n2853=value, n2854=out))):
    (plan, _), _ = plans(g)
    assert execute(plan) == 0
say()
"""
    )
    product = 2 * b * heads * s * t * d
    assert [launch.flops for launch in said.launches] == [2 * product, 2 * product, 5 * product]
    moved = 2 * b * heads * d * (s + t + t + s)
    assert {launch.bytes for launch in said.launches} == {moved}
    assert {launch.precision for launch in said.launches} == {FP16}


def test_a_graph_of_small_things_costs_its_memory(run: Run) -> None:
    said = run(
        GRAPH
        + """
x, y = tensor(1, 0, [64, 1024]), tensor(2, 0, [64, 1024])
(plan, _), _ = plans(graph(operation(13, n751=x, n753=y)))
say(status=execute(plan))
"""
    )
    assert (said.only.flops, said.only.bytes) == (0, 2 * 4 * 64 * 1024)


def test_backend_refuses(run: Run) -> None:
    said = run(
        GRAPH
        + """
empty, pack = create(PLAN), finish(create(PACK))
done = tensor(1, 0, [4])
engine = create(ENGINE)
put(engine, 1301, I64, 2)
n = c.c_int64()
say(r=[dnn.cudnnBackendFinalize(empty), dnn.cudnnBackendFinalize(None),
       dnn.cudnnBackendExecute(h, empty, pack), dnn.cudnnBackendExecute(None, empty, pack),
       put(done, 902, I64, 5), dnn.cudnnBackendFinalize(engine),
       get(done, 902, TYPE, 1, ref(n))[0], get(done, 902, I64, 1, ref(n))[0],
       dnn.cudnnBackendSetAttribute(engine, 1300, DESC, q(1), (c.c_void_p * 1)(None)),
       dnn.cudnnBackendSetAttribute(engine, 1300, DESC, q(-1), None)], n=n.value)
"""
    )
    assert said.values == {
        "r": [2000, 2002, 2004, 2002, 2000, 3000, 2010, 0, 2002, 2000],
        "n": 4,
    }
    assert said.launches == []


def test_batch_normalisation_costs_its_memory(run: Run) -> None:
    said = run("""
h = handle(dnn, "cudnnCreate", "cudnnSetStream")
t = c.c_void_p()
assert dnn.cudnnCreateTensorDescriptor(ref(t)) == 0
ints = lambda *v: (c.c_int * len(v))(*v)
assert dnn.cudnnSetTensorNdDescriptor(t, 2, 4, ints(8, 16, 32, 32), ints(16384, 1024, 32, 1)) == 0
kind, count, sizes, strides = c.c_int(), c.c_int(), ints(*[0] * 4), ints(*[0] * 4)
assert dnn.cudnnGetTensorNdDescriptor(t, 4, ref(kind), ref(count), sizes, strides) == 0
size = c.c_size_t(99)
none = [None] * 8
r = [dnn.cudnnBatchNormalizationForwardTrainingEx(h, 1, 0, None, None, t, *none),
     dnn.cudnnBatchNormalizationForwardInference(h, 1, None, None, t, *none),
     dnn.cudnnBatchNormalizationBackwardEx(h, 1, 0, None, None, None, None, t, *none),
     dnn.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(h, 1, 0, t, t, t, t, None,
                                                                  ref(size)),
     dnn.cudnnBatchNormalizationForwardInference(None, 1, None, None, t),
     dnn.cudnnSetTensorNdDescriptor(t, 2, 9, sizes, strides)]
say(r=r, size=size.value, kind=kind.value, count=count.value, sizes=list(sizes),
    strides=list(strides))
""")
    assert said.values == {
        "r": [0, 0, 0, 0, 2002, 2000], "size": 0, "kind": 2, "count": 4,
        "sizes": [8, 16, 32, 32], "strides": [16384, 1024, 32, 1],
    }  # fmt: skip
    tensor = 2 * 8 * 16 * 32 * 32
    assert [launch.bytes for launch in said.launches] == [3 * tensor, 2 * tensor, 5 * tensor]


@pytest.mark.parametrize(
    ("cell", "gates", "directions", "projected"),
    [(2, 4, 1, 0), (3, 3, 2, 0), (0, 1, 1, 0), (2, 4, 2, 5)],
)
def test_a_recurrent_network_lies_in_one_piece_and_costs_its_gates(
    run: Run, cell: int, gates: int, directions: int, projected: int
) -> None:
    inputs, hidden, layers, lengths = 6, 8, 3, [5, 4, 2]
    output = projected or hidden
    said = run(
        f"""
h = handle(dnn, "cudnnCreate", "cudnnSetStream")
net, x, drop, m, b = (c.c_void_p() for _ in range(5))
for name, d in (("RNN", net), ("RNNData", x), ("Dropout", drop), ("Tensor", m), ("Tensor", b)):
    assert getattr(dnn, f"cudnnCreate{{name}}Descriptor")(ref(d)) == 0
size = c.c_size_t()
assert dnn.cudnnDropoutGetStatesSize(h, ref(size)) == 0 and size.value
assert dnn.cudnnSetDropoutDescriptor(drop, h, c.c_float(0), p(64), size, c.c_ulonglong(1)) == 0
assert dnn.cudnnSetRNNDescriptor_v8(net, 0, {cell}, 2, {directions - 1}, 0, 0, 0, 3, {inputs},
                                    {hidden}, {projected}, {layers}, drop, 0) == 0
lengths = (c.c_int * 3)(*{lengths})
assert dnn.cudnnSetRNNDataDescriptor(x, 0, 1, 5, 3, {inputs}, lengths, None) == 0
assert dnn.cudnnGetRNNWeightSpaceSize(h, net, ref(size)) == 0
def lies(layer, number, matrix):
    place, other, kind, count = c.c_void_p(), c.c_void_p(), c.c_int(), c.c_int()
    sizes, strides = (c.c_int * 3)(), (c.c_int * 3)()
    status = dnn.cudnnGetRNNWeightParams(h, net, layer, size, p(4096), number, m,
        ref(place) if matrix else None, b, None if matrix else ref(place))
    if status: return status
    dnn.cudnnGetTensorNdDescriptor(m if matrix else b, 3, ref(kind), ref(count), sizes, strides)
    return place.value and [place.value - 4096, list(sizes)]
numbers = range({2 * gates + bool(projected)})
places = [[lies(l, n, matrix) for n in numbers] for matrix in (True, False)
          for l in range({layers * directions})]
strange = [lies({layers * directions}, 0, True), lies(0, 99, True), lies(-1, 0, True)]
work, reserve = c.c_size_t(), c.c_size_t(9)
assert dnn.cudnnGetRNNTempSpaceSizes(h, net, 1, x, ref(work), ref(reserve)) == 0
training = reserve.value
assert dnn.cudnnGetRNNTempSpaceSizes(h, net, 0, x, ref(work), ref(reserve)) == 0
none = [None] * 12
r = [dnn.cudnnRNNForward(h, net, 1, None, x, *none),
     dnn.cudnnRNNBackwardData_v8(h, net, None, x, None, None, x, *none),
     dnn.cudnnRNNBackwardWeights_v8(h, net, 1, None, x, *none),
     dnn.cudnnRNNForward(h, None, 1, None, x, *none)]
say(r=r, size=size.value, places=places, strange=strange, training=training, plain=reserve.value)
"""
    )
    pieces = [piece for row in said.values["places"] for piece in row if piece]
    ends = 0
    for offset, sizes in pieces:
        # One behind another without gaps, as torch's views demand.
        assert offset == ends
        ends += 4 * math.prod(sizes)
    assert ends == said.values["size"]
    matrices = sum(
        directions * (gates * hidden * (width + output) + (projected * hidden))
        for width in [inputs, *[output * directions] * (layers - 1)]
    )
    assert said.values["r"] == [0, 0, 0, 2002] and said.values["strange"] == [2000] * 3
    assert said.values["plain"] == 0 < said.values["training"]
    assert [launch.flops for launch in said.launches] == [2 * matrices * sum(lengths)] * 3
    assert {launch.precision for launch in said.launches} == {FP32}  # FMA math was asked for
