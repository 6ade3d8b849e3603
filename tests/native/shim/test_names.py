"""D20: every driver entry point that looks like one that holds memory or takes device time is
decided on, and the table of marks says how."""

from __future__ import annotations

import re
import subprocess

import pytest
import shim_harness as harness
import symbols
from test_lookup import exported


def undecided(candidates: set[str]) -> list[str]:
    hooked = exported(harness.shim())
    return sorted(name for name in candidates if not symbols.mark(name, name in hooked))


def test_every_suspicious_name_has_a_mark() -> None:
    assert undecided(symbols.names()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("cuMemAlloc_v3", "cuMemAllocAsync_v2_ptsz", "cuTileCreate", "cuMemPoolGrow"),
        *("cuLaunchTile", "cuGraphLaunch_v2", "cuMemsetD64_v2", "cuQueueSubmit"),
    ],
)
def test_a_new_name_fails_the_test(name: str) -> None:
    assert undecided(symbols.names() | {name}) == [name]


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("cuLaunchKernel", "gate"),
        ("cuGraphLaunch_ptsz", "gate"),
        ("cuMemsetD32Async_ptsz", "gate"),
        ("cuMemAlloc_v2", "count"),
        ("cuMemRelease", "count"),
        ("cuMemGetInfo_v2", "report"),
        ("cuModuleLoadData", "pass"),
        ("cuCtxGetDevice", "pass"),
    ],
)
def test_marks(name: str, mark: str) -> None:
    assert f"{name} {mark}" in [
        line.split(":")[0] for line in symbols.TABLE.read_text().splitlines()
    ]


def test_the_table_is_of_this_tree() -> None:
    assert symbols.TABLE.read_text() == symbols.table(), (
        "write it anew: python tests/native/shim/symbols.py"
    )


def test_every_hook_is_a_known_name_and_exported() -> None:
    hooks = {name for name in exported(harness.shim()) if name.startswith("cu")}
    assert hooks <= symbols.names()
    assert hooks == symbols.hooks()


def test_reasons_are_for_names_that_are_there_and_not_hooked() -> None:
    assert set(symbols.reasons()) <= symbols.names()
    assert not set(symbols.reasons()) & exported(harness.shim())
    assert all(reason.strip() for reason in symbols.reasons().values())


def test_what_nvml_tells_of_memory_and_use_is_decided_on() -> None:
    known = symbols.nvml_names()
    assert len(known) > 400
    assert symbols.nvml_undecided(known) == []
    assert symbols.nvml_hooks() <= exported(harness.shim())
    assert set(symbols.nvml_reasons()) <= known - symbols.nvml_hooks()


@pytest.mark.parametrize(
    "name",
    [
        *("nvmlDeviceGetMemoryInfo_v3", "nvmlDeviceGetComputeRunningProcesses_v4"),
        *("nvmlDeviceGetRunningProcessDetailList_v2", "nvmlDeviceGetUtilizationRates_v2"),
    ],
)
def test_a_new_one_of_nvml_fails_the_test(name: str) -> None:
    assert symbols.nvml_undecided(symbols.nvml_names() | {name}) == [name]


# --- what the library itself needs ---------------------------------------------------------


def needed_versions(library: str) -> set[tuple[int, ...]]:
    """Return the glibc versions of the symbols that a library needs."""
    shown = subprocess.run(
        ["readelf", "--version-info", "--wide", library],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    needs = shown.partition("Version needs section")[2]
    found = re.findall(r"Name: GLIBC_([\d.]+)", needs)
    assert found, "a library that needs nothing of glibc would not be ours"
    return {tuple(map(int, version.split("."))) for version in found}


def test_it_loads_with_glibc_2_17_and_newer() -> None:
    """Below the 2.28 that is promised; a new call of a newer one fails here."""
    assert max(needed_versions(str(harness.shim()))) <= (2, 17)


def test_control_a_newer_symbol_is_seen(tmp_path: harness.Path) -> None:
    source = tmp_path / "new.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <unistd.h>\nint f(void) { return (int)gettid(); }\n"
    )
    library = tmp_path / "new.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", source, "-o", library],
        check=True,
        timeout=240,
    )
    assert max(needed_versions(str(library))) >= (2, 30)


def test_it_needs_the_c_library_alone() -> None:
    shown = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(harness.shim())],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert set(re.findall(r"NEEDED.*\[(.+?)\]", shown)) <= {"libc.so.6", "ld-linux-x86-64.so.2"}
