"""D20: every driver entry point that looks like one that holds memory is decided on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import shim_harness as harness
from test_lookup import exported

DATA = Path(__file__).parents[2] / "data"

#: Words of a name behind which memory may be taken. Rather one too many: the answer to a
#: false alarm is a line with a reason.
SUSPICIOUS = re.compile(
    r"Alloc|Create|Import|IpcOpen|Reserve|Load|HostRegister|Retain|Attach|Instantiate"
    r"|Map(?!ped)|AddNode|Add\w*Node|MemPool|GraphMem|Mapped|CtxFrom|Clone|SetLimit"
    r"|CtxSetFlags|PrimaryCtx|MemRequirements|MemoryRequirements"
)
#: What gives back, or only looks.
HARMLESS = re.compile(
    r"Destroy|Unmap|PoolGet|PoolExport|PoolSetAccess|GetState|NodeGet|UnLoad|Unload|GetAttribute"
    r"|ToArray|TrimTo$|cuStreamAttach|GetMappedTo|MapRange|DeviceGet\w*MemPool|GetLoadingMode"
    r"|TensorMap(?!EncodeTiled)|LogsRegister|GetMipmap|GetMipmapped|SetMipmap|Dependen"
)


def names() -> set[str]:
    return set((DATA / "cuda_driver_names.txt").read_text().split())


def reasons() -> dict[str, str]:
    lines = (DATA / "cuda_not_hooked.txt").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line.strip() and not line.startswith("#"))


def undecided(candidates: set[str]) -> list[str]:
    hooked = exported(harness.shim())
    return sorted(
        name
        for name in candidates - hooked - set(reasons())
        if SUSPICIOUS.search(name) and not HARMLESS.search(name)
    )


def test_every_suspicious_name_is_decided_on() -> None:
    assert undecided(names()) == []


@pytest.mark.parametrize(
    "name", ["cuMemAlloc_v3", "cuMemAllocAsync_v2_ptsz", "cuTileCreate", "cuMemPoolGrow"]
)
def test_a_new_name_fails_the_test(name: str) -> None:
    assert undecided(names() | {name}) == [name]


def test_every_hook_is_a_known_name() -> None:
    hooks = {name for name in exported(harness.shim()) if name.startswith("cu")}
    assert hooks <= names()


def test_reasons_are_for_names_that_are_there_and_not_hooked() -> None:
    assert set(reasons()) <= names()
    assert not set(reasons()) & exported(harness.shim())
    assert all(reason.strip() for reason in reasons().values())
