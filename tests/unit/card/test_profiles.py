"""Profiles: complete, in the card's granules, and consistent with each other."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from testbed.card import PROFILES, profiles
from testbed.errors import InputError
from testbed.native import card

#: Given by the driver root, not by a model.
OF_THE_CARD = {"uuid", "name", "pci_bus_id", "index", "minor", "driver_text"}


#: FP32 units of a multiprocessor (CUDA C++ Programming Guide, arithmetic throughput).
FP32_UNITS = {(7, 5): 64, (8, 0): 64, (8, 9): 128, (9, 0): 128}
ROOT = Path(__file__).parents[3]


def values(name: str) -> dict[str, int]:
    return {field: figure.value for field, figure in profiles.load(name).figures.items()}


@pytest.mark.parametrize("name", PROFILES)
def test_complete(name: str) -> None:
    figures = profiles.load(name).figures
    known = {f.name for f in fields(card.CardDescription)} - OF_THE_CARD
    needed = {f.name for f in fields(card.CardDescription) if f.default is MISSING} - OF_THE_CARD
    assert needed <= set(figures) <= known
    for field, figure in figures.items():
        assert figure.value > 0 or field == "compute_minor"
        assert figure.source
        assert figure.confidence in ("measured", "documented", "reported", "assumed")


@pytest.mark.parametrize("name", PROFILES)
def test_a_measured_figure_names_what_measured_it(name: str) -> None:
    for field, figure in profiles.load(name).figures.items():
        if figure.confidence == "measured":
            (script,) = re.findall(r"tests/gpu/\w+\.py", figure.source)
            assert (ROOT / script).is_file(), field
            assert "driver" in figure.source, field


@pytest.mark.parametrize("name", PROFILES)
def test_sizes_are_granules(name: str) -> None:
    found = values(name)
    memory, reserved = found["memory_bytes"], found["reserved_bytes"]
    assert found["context_bytes"] % card.GRANULE_BYTES == 0
    assert (memory - reserved) % card.GRANULE_BYTES == 0
    assert reserved < memory // 10
    assert found["context_bytes"] < memory // 10


@pytest.mark.parametrize("name", PROFILES)
def test_figures_agree_with_each_other(name: str) -> None:
    """Two ways to each rate: what is documented, and clocks times units."""
    found = values(name)
    units = FP32_UNITS[found["compute_major"], found["compute_minor"]]
    peak = found["sm_count"] * units * 2 * found["clock_khz"] * 1000
    assert found["fp32_flops"] == pytest.approx(peak, rel=0.01)
    pins = found["memory_bus_bits"] / 8 * found["memory_clock_khz"] * 1000 * 2
    assert found["memory_bandwidth_bps"] == pytest.approx(pins, rel=0.01)  # two a clock
    assert found["fp64_flops"] < found["fp32_flops"] <= found["tf32_flops"] <= found["fp16_flops"]
    assert found["int8_flops"] == pytest.approx(2 * found["fp16_flops"], rel=0.02)
    assert found["copy_bandwidth_bps"] < found["memory_bandwidth_bps"]
    assert (
        found["shared_per_block_bytes"]
        <= found["shared_per_block_optin_bytes"]
        <= found["shared_per_sm_bytes"]
    )
    assert found["max_threads_per_sm"] % 1024 in (0, 512)
    assert found["time_slice_us"] * 1000 > found["switch_ns"] > found["launch_overhead_ns"]
    assert found["sample_lag_us"] < found["sample_period_us"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a100-80gb", "79.15 GiB"),
        ("a100-40gb", "39.59 GiB"),
        ("h100-80gb", "79.11 GiB"),
        ("t4", "14.74 GiB"),
        ("l40s", "44.40 GiB"),
    ],
)
def test_known_by_what_users_see(name: str, text: str) -> None:
    """The size in PyTorch's out-of-memory texts, as other people's logs have it."""
    found = values(name)
    assert f"{(found['memory_bytes'] - found['reserved_bytes']) / 2**30:.2f} GiB" == text


def test_unknown() -> None:
    with pytest.raises(InputError, match="unknown card 'b300'") as caught:
        profiles.load("b300")
    assert "a100-80gb" in caught.value.hint
