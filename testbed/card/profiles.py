"""Models of cards as data: each figure with its source and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from testbed.errors import InputError, known_hint
from testbed.units import MIB

#: ``documented``: the vendor's papers say so. ``reported``: seen on such cards by others,
#: in public logs. ``assumed``: plausible, chosen by us. Nothing here was measured by us.
Confidence = Literal["documented", "reported", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    value: int
    source: str
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model of card.

    Args:
        name: How users name it.
        model: What driver API and NVML report.
        figures: By field of ``testbed.native.card.CardDescription``.
    """

    name: str
    model: str
    figures: Mapping[str, Figure]


def _documented(source: str, **values: int) -> dict[str, Figure]:
    return {k: Figure(value=v, source=source, confidence="documented") for k, v in values.items()}


def _reported(source: str, **values: int) -> dict[str, Figure]:
    return {k: Figure(value=v, source=source, confidence="reported") for k, v in values.items()}


def _assumed(source: str, **values: int) -> dict[str, Figure]:
    return {k: Figure(value=v, source=source, confidence="assumed") for k, v in values.items()}


_EMULATION = {
    **_assumed("a fair share of PCIe 4.0 x16", copy_bandwidth_bps=24_000_000_000),
    **_assumed("order of magnitude of a launch", launch_overhead_ns=2_000),
    **_reported("NVML answers with about six samples a second", sample_period_us=166_667),
    **_assumed("what the emulated libcuda speaks", driver_version=13_020),
}

_GA100 = {
    **_documented(
        "CUDA C++ Programming Guide, compute capability 8.0",
        compute_major=8,
        compute_minor=0,
        max_threads_per_sm=2048,
        max_blocks_per_sm=32,
        shared_per_sm_bytes=164 * 1024,
        shared_per_block_bytes=48 * 1024,
        shared_per_block_optin_bytes=163 * 1024,
        registers_per_sm=65536,
    ),
    **_documented(
        "NVIDIA A100 Tensor Core GPU Architecture (white paper)",
        sm_count=108,
        clock_khz=1_410_000,
        memory_bus_bits=5120,
        l2_bytes=40 * MIB,
        fp32_flops=19_500_000_000_000,
        tf32_flops=156_000_000_000_000,
        fp16_flops=312_000_000_000_000,
        fp64_flops=9_700_000_000_000,
    ),
    **_reported("deviceQuery logs", copy_engines=3),
    **_reported(
        "nvidia-smi shows 400 to 500 MiB for a process with a bare context",
        context_bytes=424 * MIB,
    ),
}

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            Profile(
                name="a100-80gb",
                model="NVIDIA A100-SXM4-80GB",
                figures={
                    **_EMULATION,
                    **_GA100,
                    **_documented("NVIDIA A100 data sheet", memory_bandwidth_bps=2_039_000_000_000),
                    **_reported(
                        "nvidia-smi shows 81,920 MiB and 1,593 MHz",
                        memory_bytes=81_920 * MIB,
                        memory_clock_khz=1_593_000,
                    ),
                    **_reported(
                        "PyTorch's out-of-memory texts say 79.15 GiB in all",
                        reserved_bytes=870 * MIB,
                    ),
                },
            ),
            Profile(
                name="a100-40gb",
                model="NVIDIA A100-SXM4-40GB",
                figures={
                    **_EMULATION,
                    **_GA100,
                    **_documented("NVIDIA A100 data sheet", memory_bandwidth_bps=1_555_000_000_000),
                    **_reported(
                        "nvidia-smi shows 40,960 MiB and 1,215 MHz",
                        memory_bytes=40_960 * MIB,
                        memory_clock_khz=1_215_000,
                    ),
                    **_reported(
                        "PyTorch's out-of-memory texts say 39.59 GiB in all",
                        reserved_bytes=420 * MIB,
                    ),
                },
            ),
        )
    }
)


def load(name: str) -> Profile:
    """Return a profile by name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in PROFILES:
        raise InputError(f"unknown card {name!r}", hint=known_hint(name, PROFILES))
    return PROFILES[name]
