"""The libraries that torch links beside the CUDA runtime, and how each says "no".

Some have a written part (``Family.written``) that does what torch's models need; every
other function says no. Numbers are those of each library's published interface. A function
that does not return a status (a version, a text, a pointer) has its own few lines of C here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: nvidia-cublas of a CUDA toolkit; torch's metadata names the toolkit only.
_CUBLAS_OF_TOOLKIT = {"13.2": 130400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions that torch was built against, as its metadata pins them."""

    toolkit: tuple[int, int] = (0, 0)
    cudnn: tuple[int, int, int] = (0, 0, 0)
    nccl: tuple[int, int, int] = (0, 0, 0)
    nvshmem: tuple[int, int, int] = (0, 0, 0)

    @property
    def cublas(self) -> int:
        """cuBLAS as one number; the toolkit's major version where it is not known."""
        major, minor = self.toolkit
        return _CUBLAS_OF_TOOLKIT.get(f"{major}.{minor}", major * 10000)

    @classmethod
    def of(cls, metadata: str) -> Versions:
        """Read them from the text of a wheel's METADATA."""

        def pinned(distribution: str) -> tuple[int, int, int]:
            found = re.search(
                rf"^Requires-Dist: {distribution}(?:-cu\d+)?(?:\[[^\]]*\])?==([\d.]+)",
                metadata,
                re.MULTILINE,
            )
            numbers = [int(n) for n in found[1].split(".") if n] if found else []
            first, second, third = (*numbers, 0, 0, 0)[:3]
            return first, second, third

        return cls(
            toolkit=pinned("cuda-toolkit")[:2],
            cudnn=pinned("nvidia-cudnn"),
            nccl=pinned("nvidia-nccl"),
            nvshmem=pinned("nvidia-nvshmem"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One library: how its soname begins, its name for people, its status."""

    soname: str
    title: str
    #: Its functions' names begin so: for symbols linked without a version.
    prefix: str
    #: What a function returns that reports a status.
    status: int
    #: Function -> C, for those that do not. ``{…}`` are names of ``numbers``.
    special: Mapping[str, str] = field(default_factory=dict)
    #: C beside this file with functions that work on emulated cards.
    written: tuple[str, ...] = ()


def numbers(versions: Versions) -> dict[str, int]:
    """Return the numbers that the C of ``Family.special`` may name."""
    major, minor = versions.toolkit
    named = {"toolkit_major": major, "toolkit_minor": minor, "cublas": versions.cublas}
    named["cudart"] = major * 1000 + minor * 10
    for name in ("cudnn", "nccl", "nvshmem"):
        first, second, third = getattr(versions, name)
        named |= {f"{name}_0": first, f"{name}_1": second, f"{name}_2": third}
        named[name] = first * 10000 + second * 100 + third
    return named


def _text(function: str, parameters: str = "int status") -> str:
    unused = "(void)status; " if parameters == "int status" else ""
    return f"const char *{function}({parameters}) {{{{ {unused}return NOT_EMULATED; }}}}"


def _pointer(function: str) -> str:
    return f"void *{function}(void) {{{{ SAY({function}); return NULL; }}}}"


def _void(function: str) -> str:
    return f"void {function}(void) {{{{ SAY({function}); }}}}"


_WORK = ("cost.c", "work.c")

FAMILIES: tuple[Family, ...] = (
    Family(
        soname="libcublasLt.so",
        title="cuBLASLt",
        prefix="cublasLt",
        status=15,  # CUBLAS_STATUS_NOT_SUPPORTED
        special={
            "cublasLtGetVersion": "size_t cublasLtGetVersion(void) {{ return {cublas}; }}",
            "cublasLtGetCudartVersion": (
                "size_t cublasLtGetCudartVersion(void) {{ return {cudart}; }}"
            ),
        },
        written=("cublaslt.c", *_WORK),
    ),
    Family(
        soname="libcublas.so",
        title="cuBLAS",
        prefix="cublas",
        status=15,
        written=("cublas.c", *_WORK),
    ),
    Family(
        soname="libcudnn.so",
        title="cuDNN",
        prefix="cudnn",
        status=3000,  # CUDNN_STATUS_NOT_SUPPORTED
        special={
            "cudnnGetVersion": "size_t cudnnGetVersion(void) {{ return {cudnn}; }}",
            "cudnnGetCudartVersion": "size_t cudnnGetCudartVersion(void) {{ return {cudart}; }}",
            # libraryPropertyType: 0 major, 1 minor, 2 patch
            "cudnnGetProperty": (
                "int cudnnGetProperty(int type, int *value) "
                "{{ static const int of[] = {{{cudnn_0}, {cudnn_1}, {cudnn_2}}}; "
                "if (type < 0 || type > 2 || !value) return 2000; "
                "*value = of[type]; return 0; }}"
            ),
        },
        written=("cudnn.c", "cudnn_backend.c", "cudnn_cost.c", "cudnn_rnn.c", *_WORK),
    ),
    Family(
        soname="libcusparseLt.so",
        title="cuSPARSELt",
        prefix="cusparseLt",
        status=10,  # CUSPARSE_STATUS_NOT_SUPPORTED
        special={
            "cusparseLtGetErrorString": _text("cusparseLtGetErrorString"),
            "cusparseLtGetErrorName": _text("cusparseLtGetErrorName"),
        },
    ),
    Family(
        soname="libcusparse.so",
        title="cuSPARSE",
        prefix="cusparse",
        status=10,
        special={
            "cusparseGetErrorString": _text("cusparseGetErrorString"),
            "cusparseGetErrorName": _text("cusparseGetErrorName"),
        },
    ),
    Family(
        soname="libcusolver.so",
        title="cuSOLVER",
        prefix="cusolver",
        status=9,  # CUSOLVER_STATUS_NOT_SUPPORTED
    ),
    Family(soname="libcufft.so", title="cuFFT", prefix="cufft", status=16),  # CUFFT_NOT_SUPPORTED
    Family(
        soname="libcufile.so",
        title="cuFile",
        prefix="cuFile",
        # CU_FILE_PLATFORM_NOT_SUPPORTED, the first half of a struct of two ints
        status=5007,
        special={
            name: f"long {name}(void) {{{{ SAY({name}); return -5007; }}}}"
            for name in ("cuFileRead", "cuFileWrite")
        },
    ),
    Family(
        soname="libnccl.so",
        title="NCCL",
        prefix="nccl",
        status=5,  # ncclInvalidUsage: it has no "not supported"
        special={
            "ncclGetVersion": (
                "int ncclGetVersion(int *version) "
                "{{ if (!version) return 4; *version = {nccl}; return 0; }}"
            ),
            "ncclGetErrorString": _text("ncclGetErrorString"),
            "ncclGetLastError": _text("ncclGetLastError", "void"),
        },
    ),
    Family(
        soname="libnvrtc.so",
        title="NVRTC",
        prefix="nvrtc",
        status=11,  # NVRTC_ERROR_INTERNAL_ERROR: it has no "not supported"
        special={
            "nvrtcVersion": (
                "int nvrtcVersion(int *major, int *minor) "
                "{{ if (!major || !minor) return 3; "
                "*major = {toolkit_major}; *minor = {toolkit_minor}; return 0; }}"
            ),
            "nvrtcGetErrorString": _text("nvrtcGetErrorString"),
        },
    ),
    Family(
        soname="libcupti.so",
        title="CUPTI",
        prefix="cupti",
        status=27,  # CUPTI_ERROR_NOT_SUPPORTED
        special={
            "cuptiGetResultString": (
                "int cuptiGetResultString(int status, const char **text) "
                "{{ (void)status; if (!text) return 1; *text = NOT_EMULATED; return 0; }}"
            ),
        },
    ),
    Family(
        soname="libnvshmem_host.so",
        title="NVSHMEM",
        prefix="nvshmem",
        status=3,  # NVSHMEMX_ERROR_NOT_SUPPORTED
        special={
            "nvshmem_info_get_version": (
                "void nvshmem_info_get_version(int *major, int *minor) "
                "{{ *major = {nvshmem_0}; *minor = {nvshmem_1}; }}"
            ),
            "nvshmem_malloc": _pointer("nvshmem_malloc"),
            "nvshmem_ptr": _pointer("nvshmem_ptr"),
            "nvshmemx_mc_ptr": _pointer("nvshmemx_mc_ptr"),
            "nvshmem_free": _void("nvshmem_free"),
            "nvshmem_barrier_all": _void("nvshmem_barrier_all"),
            "nvshmemx_signal_wait_until_on_stream": _void("nvshmemx_signal_wait_until_on_stream"),
            "nvshmem_team_n_pes": "int nvshmem_team_n_pes(void) {{ return -1; }}",
            # NVSHMEM_STATUS_NOT_INITIALIZED
            "nvshmemid_init_status": "int nvshmemid_init_status(void) {{ return 0; }}",
        },
    ),
)


def family_of(soname: str) -> Family | None:
    """Return the family of a library's soname; ``libcublas.so.13`` is cuBLAS."""
    return next((f for f in FAMILIES if soname.startswith(f.soname + ".")), None)
