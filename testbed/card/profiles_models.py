"""The models: what is common to a generation, then what each card has of its own.

Rates are those of dense arithmetic at the boost clock, without sparsity: what a kernel of
known arithmetic is timed by. Tensor cores for ``tf32`` and ``fp16``, where a card has
them; ``fp32`` and ``fp64`` without. Partitioning (MIG) is in no profile.
"""

from __future__ import annotations

from testbed.card.profiles_figure import (
    Figures,
    Profile,
    assumed,
    documented,
    measured,
    reported,
)
from testbed.native.card import SAMPLES_ONE
from testbed.units import MIB

_TERA, _GIGA = 1_000_000_000_000, 1_000_000_000
_GUIDE = "CUDA C++ Programming Guide, technical specifications per compute capability"
_SMI = "nvidia-smi -q"
_QUERY = "deviceQuery logs"
#: Which card, which driver, and what was run.
_PROBE = "one H200, driver 580.159.04: tests/gpu/probe.py"
#: Of a card of another generation than the one that was measured.
_AS_H200 = "as measured on an H200 (tests/gpu/probe.py)"

_EMULATION: Figures = {
    **assumed("what the emulated libcuda speaks", driver_version=13_020),
    **reported("NVML answers with about six samples a second", sample_period_us=166_667),
    **assumed("within one period", sample_lag_us=100_000),
    **assumed(
        _AS_H200,
        time_slice_us=2_090,
        switch_ns=153_000,
        launch_overhead_ns=1_500,
        event_ns=2_065,
    ),
}


def _architecture(
    major: int, minor: int, *, threads: int, blocks: int, shared_kib: int, optin_kib: int
) -> Figures:
    return documented(
        _GUIDE,
        compute_major=major,
        compute_minor=minor,
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        shared_per_sm_bytes=shared_kib * 1024,
        shared_per_block_bytes=48 * 1024,
        shared_per_block_optin_bytes=optin_kib * 1024,
        registers_per_sm=65536,
    )


# --- Ampere ---------------------------------------------------------------------------

_A100: Figures = {
    **_EMULATION,
    **_architecture(8, 0, threads=2048, blocks=32, shared_kib=164, optin_kib=163),
    **documented(
        "NVIDIA A100 Tensor Core GPU Architecture (white paper)",
        sm_count=108,
        clock_khz=1_410_000,
        memory_bus_bits=5120,
        l2_bytes=40 * MIB,
        fp32_flops=19_500 * _GIGA,
        tf32_flops=156 * _TERA,
        fp16_flops=312 * _TERA,
        int8_flops=624 * _TERA,
        fp64_flops=9_700 * _GIGA,
    ),
    **assumed("a fair share of PCIe 4.0 x16", copy_bandwidth_bps=24 * _GIGA),
    **reported(_QUERY, copy_engines=3),
    **reported(
        "nvidia-smi shows 400 to 500 MiB for a process with a bare context",
        context_bytes=424 * MIB,
    ),
}

_A100_80 = Profile(
    name="a100-80gb",
    model="NVIDIA A100-SXM4-80GB",
    figures={
        **_A100,
        **documented("NVIDIA A100 data sheet", memory_bandwidth_bps=2_039 * _GIGA),
        **reported(_SMI, memory_bytes=81_920 * MIB, memory_clock_khz=1_593_000),
        **reported("PyTorch's out-of-memory texts say 79.15 GiB in all", reserved_bytes=870 * MIB),
    },
)

_A100_40 = Profile(
    name="a100-40gb",
    model="NVIDIA A100-SXM4-40GB",
    figures={
        **_A100,
        **documented("NVIDIA A100 data sheet", memory_bandwidth_bps=1_555 * _GIGA),
        **reported(_SMI, memory_bytes=40_960 * MIB, memory_clock_khz=1_215_000),
        **reported("PyTorch's out-of-memory texts say 39.59 GiB in all", reserved_bytes=420 * MIB),
    },
)

# --- Hopper ---------------------------------------------------------------------------

_HOPPER: Figures = {
    **_EMULATION,
    **_architecture(9, 0, threads=2048, blocks=32, shared_kib=228, optin_kib=227),
    **documented(
        "NVIDIA H100 Tensor Core GPU Architecture (white paper), SXM5",
        sm_count=132,
        fp32_flops=66_900 * _GIGA,
        tf32_flops=494_700 * _GIGA,
        fp16_flops=989_400 * _GIGA,
        int8_flops=1_978_900 * _GIGA,
        fp64_flops=33_500 * _GIGA,
    ),
}

_H100 = Profile(
    name="h100-80gb",
    model="NVIDIA H100 80GB HBM3",
    figures={
        **_HOPPER,
        **documented(
            "NVIDIA H100 data sheet, SXM",
            memory_bandwidth_bps=3_350 * _GIGA,
            memory_bus_bits=5120,
            l2_bytes=50 * MIB,
        ),
        **reported(
            _SMI, memory_bytes=81_559 * MIB, memory_clock_khz=2_619_000, clock_khz=1_980_000
        ),
        **reported("PyTorch's out-of-memory texts say 79.11 GiB in all", reserved_bytes=551 * MIB),
        # The same chip in front of other memory.
        **assumed(
            _AS_H200,
            context_bytes=518 * MIB,
            copy_engines=3,
            copy_bandwidth_bps=55_300_000_000,
        ),
    },
)

_H200 = Profile(
    name="h200",
    model="NVIDIA H200",
    figures={
        **_HOPPER,
        **measured(
            f"{_PROBE}, device attributes",
            compute_major=9,
            compute_minor=0,
            sm_count=132,
            clock_khz=1_980_000,
            memory_clock_khz=3_201_000,
            memory_bus_bits=6016,
            l2_bytes=62_914_560,
            max_threads_per_sm=2048,
            max_blocks_per_sm=32,
            shared_per_sm_bytes=233_472,
            shared_per_block_optin_bytes=232_448,
            registers_per_sm=65536,
            copy_engines=3,
        ),
        **measured(f"{_PROBE}, NVML's total", memory_bytes=143_771 * MIB),
        **measured(
            f"{_PROBE}: NVML says 615 MiB; with 2 more programs get whole granules of 2 MiB",
            reserved_bytes=617 * MIB,
        ),
        **measured(f"{_PROBE}, NVML's process list with a bare context", context_bytes=518 * MIB),
        **measured(
            f"{_PROBE}, pinned copies (55.4 and 55.3 GB/s)", copy_bandwidth_bps=55_300_000_000
        ),
        **documented("NVIDIA H200 data sheet", memory_bandwidth_bps=4_800 * _GIGA),
        **measured(
            f"{_PROBE}, two processes that always have work: turns of 2.090 ms, 2.396 ms apart",
            time_slice_us=2_090,
            switch_ns=153_000,
        ),
        **measured(
            f"{_PROBE}, kernels of 20 us one behind another take 21.5 us each",
            launch_overhead_ns=1_500,
        ),
        **measured(f"{_PROBE}, kernels with a timing event between them", event_ns=2_065),
        **measured(
            f"{_PROBE}, two busy processes: samples 200 ms apart, told 1 to 11 ms later to who "
            "asks every 10 ms, each with the whole card for one of the two",
            sample_period_us=200_000,
            sample_lag_us=2_000,
            process_samples=SAMPLES_ONE,
        ),
    },
)

# --- Turing, Ada ------------------------------------------------------------------------

_T4 = Profile(
    name="t4",
    model="Tesla T4",
    figures={
        **_EMULATION,
        **_architecture(7, 5, threads=1024, blocks=16, shared_kib=64, optin_kib=64),
        **documented(
            "NVIDIA Turing GPU Architecture (white paper), Tesla T4",
            sm_count=40,
            clock_khz=1_590_000,
            memory_bus_bits=256,
            l2_bytes=4 * MIB,
            memory_bandwidth_bps=320 * _GIGA,
            fp32_flops=8_100 * _GIGA,
            fp16_flops=65 * _TERA,
            int8_flops=130 * _TERA,
        ),
        **documented(
            f"{_GUIDE}: two fp64 operations a clock where there are 64 in fp32",
            fp64_flops=253 * _GIGA,
        ),
        **assumed("no TF32 units: such products run in fp32", tf32_flops=8_100 * _GIGA),
        **assumed("a fair share of PCIe 3.0 x16", copy_bandwidth_bps=12 * _GIGA),
        **reported(_QUERY, copy_engines=3),
        **reported(_SMI, memory_bytes=15_360 * MIB, memory_clock_khz=5_001_000),
        **reported("PyTorch's out-of-memory texts say 14.74 GiB in all", reserved_bytes=266 * MIB),
        **assumed(
            "a context grows with the number of SMs: about a quarter of an A100's",
            context_bytes=104 * MIB,
        ),
    },
)

_L40S = Profile(
    name="l40s",
    model="NVIDIA L40S",
    figures={
        **_EMULATION,
        **_architecture(8, 9, threads=1536, blocks=24, shared_kib=100, optin_kib=99),
        **documented(
            "NVIDIA L40S data sheet; half of what it says with sparsity",
            memory_bandwidth_bps=864 * _GIGA,
            fp32_flops=91_600 * _GIGA,
            tf32_flops=183 * _TERA,
            fp16_flops=362_050 * _GIGA,
            int8_flops=733 * _TERA,
        ),
        **documented(
            "NVIDIA Ada GPU Architecture (white paper), the L40 with the same chip",
            sm_count=142,
            memory_bus_bits=384,
            l2_bytes=96 * MIB,
        ),
        **documented(
            f"{_GUIDE}: two fp64 operations a clock where there are 128 in fp32",
            fp64_flops=1_431 * _GIGA,
        ),
        **reported(
            _SMI, memory_bytes=46_068 * MIB, memory_clock_khz=9_001_000, clock_khz=2_520_000
        ),
        **reported("PyTorch's out-of-memory texts say 44.40 GiB in all", reserved_bytes=602 * MIB),
        **assumed("a fair share of PCIe 4.0 x16", copy_bandwidth_bps=24 * _GIGA),
        **assumed("as other cards with this chip", copy_engines=2),
        **assumed("between an A100's and an H200's", context_bytes=460 * MIB),
    },
)

ALL: tuple[Profile, ...] = (_A100_80, _A100_40, _H100, _H200, _T4, _L40S)
