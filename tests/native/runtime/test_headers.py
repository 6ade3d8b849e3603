"""Our own declarations against NVIDIA's headers, where the wheel with them is installed.

The wheels nvidia-cuda-runtime and nvidia-cuda-crt bring them; ``VGPU_CUDA_HEADERS`` names
their folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "testbed" / "native" / "runtime"
#: Ours -> the vendor's, where the names differ.
STRUCTS = {
    "cudaDeviceProp": "struct cudaDeviceProp",
    "cudaPointerAttributes": "struct cudaPointerAttributes",
    "cudaFuncAttributes": "struct cudaFuncAttributes",
    "cudaConditionalNodeParams": "CUDA_CONDITIONAL_NODE_PARAMS",
}
TYPEDEFS = ("CUDA_MEMCPY2D", "CUlaunchConfig", "cudaLaunchConfig_t", "dim3", "CUuuid")


def headers() -> Path:
    named = os.environ.get("VGPU_CUDA_HEADERS")
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    found = [Path(named)] if named else [p for r in roots for p in r.glob("*/include")]
    for folder in found:
        if (folder / "cuda.h").is_file() and (folder / "cuda_runtime_api.h").is_file():
            return folder
    pytest.skip("NVIDIA's headers are not installed")


def compile_c(text: str, folder: Path, include: Path) -> None:
    done = subprocess.run(
        ["gcc", "-std=gnu11", "-fsyntax-only", f"-I{include}", "-xc", "-"],
        input=text,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def ours() -> str:
    return re.sub(r"/\*.*?\*/", "", (SOURCES / "cudart_types.h").read_text(), flags=re.DOTALL)


def members(body: str) -> list[str]:
    text = re.sub(r"union \{.*?\} of;", "", body, flags=re.DOTALL)
    found = []
    for statement in text.split(";"):
        words = statement.replace("*", " ").split()
        if words:
            names = " ".join(words).split(",")
            found += [re.sub(r"\[.*\]", "", n.split()[-1]) for n in names]
    return found


def test_layouts(tmp_path: Path) -> None:
    include = headers()
    text = ours()
    renamed = re.sub(r"\b(cuda|CU|dim3)", r"our_\1", text)
    lines = ["#include <stddef.h>", "#include <stdint.h>", renamed]
    lines += ["#include <cuda.h>", "#include <cuda_runtime_api.h>"]
    checks = 0
    for name, vendor in [*STRUCTS.items(), *((t, t) for t in TYPEDEFS)]:
        own = f"struct our_{name}" if name in STRUCTS else f"our_{name}"
        pattern = rf"struct {name} \{{(.*?)\n\}};" if name in STRUCTS else None
        if pattern:
            body = re.search(pattern, text, re.DOTALL)
        else:
            body = re.search(rf"typedef struct \{{([^{{}}]*)\}} {name};", text)
        assert body, name
        lines.append(f'_Static_assert(sizeof({own}) == sizeof({vendor}), "{name}");')
        for member in members(body[1]):
            lines.append(
                f"_Static_assert(offsetof({own}, {member}) == offsetof({vendor}, {member}), "
                f'"{name}.{member}");'
            )
            checks += 1
    lines.append(
        '_Static_assert(sizeof(our_CUipcHandle) == sizeof(cudaIpcMemHandle_t), "ipc");'
        '_Static_assert(sizeof(our_CUipcHandle) == sizeof(CUipcEventHandle), "ipc");'
        "_Static_assert(sizeof(struct our_cudaGraphNodeParams) =="
        ' sizeof(struct cudaGraphNodeParams), "node");'
        "_Static_assert(offsetof(struct our_cudaGraphNodeParams, of) =="
        ' offsetof(struct cudaGraphNodeParams, conditional), "node");'
    )
    assert checks > 130
    compile_c("\n".join(lines), tmp_path, include)


def test_numbers(tmp_path: Path) -> None:
    include = headers()
    lines = ["#include <cuda.h>", "#include <cuda_runtime_api.h>"]
    constants = re.findall(r"\b((?:cuda|CU)\w+) = (-?\d+)", ours())
    assert len(constants) > 40
    for name, number in constants:
        # (cudaInvalidDeviceId is a macro of a cast: compared as a number too)
        lines.append(f'_Static_assert((int)({name}) == {number}, "{name}");')
    errors = re.findall(r"\{(\d+), \"(cuda\w+)\",", (SOURCES / "errors.c").read_text())
    for number, name in errors:
        lines.append(f'_Static_assert({name} == {number}, "{name}");')
    table = (SOURCES / "device.c").read_text()
    properties = {
        field: int(number) for number, field in re.findall(r"X\((\d+), ([\w\[\]]+)\)", table)
    }
    for field, vendor in {
        "maxGridSize[2]": "cudaDevAttrMaxGridDimZ",
        "major": "cudaDevAttrComputeCapabilityMajor",
        "sharedMemPerBlockOptin": "cudaDevAttrMaxSharedMemoryPerBlockOptin",
        "multiProcessorCount": "cudaDevAttrMultiProcessorCount",
        "hostNumaMultinodeIpcSupported": "cudaDevAttrHostNumaMultinodeIpcSupported",
        "maxTexture2DLinear[2]": "cudaDevAttrMaxTexture2DLinearPitch",
        "l2CacheSize": "cudaDevAttrL2CacheSize",
    }.items():
        lines.append(f'_Static_assert({vendor} == {properties[field]}, "{field}");')
    compile_c("\n".join(lines), tmp_path, include)


def test_every_driver_error_is_known_or_unknown_on_purpose() -> None:
    text = (headers() / "cuda.h").read_text()
    body = re.search(r"typedef enum cudaError_enum \{(.*?)\} CUresult", text, re.DOTALL)
    assert body
    driver = {int(n) for n in re.findall(r"CUDA_\w+\s*=\s*(\d+)", body[1])}
    known = {int(n) for n in re.findall(r"\{(\d+), \"cuda", (SOURCES / "errors.c").read_text())}
    # CUDA_ERROR_CONTEXT_ALREADY_CURRENT, CUDA_ERROR_KEY_ROTATION: the runtime has no such error.
    assert driver - known == {202, 916}


def test_driver_signatures(tmp_path: Path) -> None:
    """Each function of the table has the parameters of the version that is asked for."""
    include = headers()
    typedefs = "".join(p.read_text() for p in include.glob("cuda*Typedefs.h"))
    table = (SOURCES / "driver.h").read_text().replace("\\\n", " ")
    rows = re.findall(r"X\((cu\w+), (\d+), +\(((?:[^()])*)\)\)", table)
    assert len(rows) > 90
    for name, version, parameters in rows:
        declared = re.search(rf"PFN_{name}_v{version}\)\((.*?)\);", typedefs)
        assert declared, f"{name} has no variant of version {version}"
        count = 0 if parameters == "void" else parameters.count(",") + 1
        theirs = 0 if declared[1] == "void" else declared[1].count(",") + 1
        assert count == theirs, name


# --- the stand-ins ----------------------------------------------------------------------

#: Called with more parameters than they look at.
SHORTER = {
    "cudnnBatchNormalizationForwardTrainingEx",
    "cudnnBatchNormalizationForwardInference",
    "cudnnBatchNormalizationBackwardEx",
    "cudnnRNNForward",
    "cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardWeights_v8",
}
STANDINS = SOURCES.parent / "standins"


def math_headers() -> list[Path]:
    """Folders with the headers of cuBLAS, cuBLASLt and cuDNN, and CUDA's."""
    cuda = headers()
    near = [cuda, *cuda.parent.parent.glob("*/include")]
    found = [folder for folder in near if (folder / "cublasLt.h").is_file()]
    found += [folder for folder in near if (folder / "cudnn.h").is_file()]
    if len(found) < 2:
        pytest.skip("the headers of cuBLAS and cuDNN are not installed")
    return [*found, cuda]


def preprocess(text: str, include: list[Path]) -> str:
    done = subprocess.run(
        ["gcc", "-std=gnu11", "-E", "-P", *(f"-I{i}" for i in include), "-xc", "-"],
        input=text, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return done.stdout


def parameters(text: str, end: str) -> dict[str, int]:
    """Function -> number of parameters, of declarations or definitions."""
    found = re.findall(rf"\b((?:cublas|cudnn)\w+)\(([^(){{}}]*)\)\s*{end}", text)
    return {n: 0 if p.strip() == "void" else p.count(",") + 1 for n, p in found}


MATH = "#include <cublas_v2.h>\n#include <cublasLt.h>\n#include <cudnn.h>\n"


def test_numbers_of_the_stand_ins(tmp_path: Path) -> None:
    include = math_headers()
    ours = re.sub(r"/\*.*?\*/", "", (STANDINS / "vendor.h").read_text(), flags=re.DOTALL)
    constants = re.findall(r"\b((?:CU|CUDA|CUBLAS|CUBLASLT|CUDNN)_\w+) = (\d+)", ours)
    assert len(constants) > 100
    lines = [MATH, "#include <stddef.h>"]
    lines += [f'_Static_assert((int)({n}) == {v}, "{n}");' for n, v in constants]
    # The one structure that callers read.
    for member, offset in {"workspaceSize": 64, "state": 72, "wavesCount": 76}.items():
        lines.append(
            f"_Static_assert(offsetof(cublasLtMatmulHeuristicResult_t, {member}) == {offset}, "
            f'"{member}");'
        )
    lines.append('_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "result");')
    done = subprocess.run(
        ["gcc", "-std=gnu11", "-fsyntax-only", "-w", *(f"-I{i}" for i in include), "-xc", "-"],
        input="\n".join(lines), capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_parameters_of_the_stand_ins() -> None:
    include = math_headers()
    theirs = parameters(preprocess(MATH, include), ";")
    sources = ("cublas.c", "cublaslt.c", "cudnn.c", "cudnn_backend.c", "cudnn_rnn.c")
    ours: dict[str, int] = {}
    for source in sources:
        text = preprocess((STANDINS / source).read_text(), [STANDINS])
        ours |= parameters(text, r"\{")
    assert len(ours) > 80
    for name, count in ours.items():
        assert name in theirs, name
        if name in SHORTER:
            assert count < theirs[name], name
        else:
            assert count == theirs[name], name
