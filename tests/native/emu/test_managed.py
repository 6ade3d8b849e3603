"""Managed memory beyond the card."""

from __future__ import annotations

import pytest
from emu_harness import Emulation, Worker

MIB = 1 << 20
GIB = 1 << 30
CAPACITY = (81920 - 870) * MIB
CONTEXT = 424 * MIB


@pytest.fixture
def managed(worker: Worker) -> Worker:
    worker("""
        def managed(size):
            return call('cuMemAllocManaged', size, 1)
        def prefetch(pointer, size, device):
            where = driver.CUmemLocation()
            kinds = driver.CUmemLocationType
            where.type = (kinds.CU_MEM_LOCATION_TYPE_HOST if device < 0
                          else kinds.CU_MEM_LOCATION_TYPE_DEVICE)
            where.id = max(device, 0)
            call('cuMemPrefetchAsync', pointer, size, where, 0, 0)
    """)
    return worker


def use(emulation: Emulation) -> tuple[int, int]:
    (slot,) = emulation.state().slots
    return slot.memory_bytes, slot.swapped_bytes


def test_beyond_the_card(emulation: Emulation, managed: Worker) -> None:
    managed("p = managed(85 * GIB)")
    assert use(emulation) == (CAPACITY - CONTEXT, 85 * GIB - CAPACITY + CONTEXT)
    assert managed("call('cuMemGetInfo')[0]") == 0
    managed("q = managed(GIB); small = managed(4096)")
    assert use(emulation)[1] == 86 * GIB - CAPACITY + CONTEXT + 2 * MIB  # the small one is in
    managed("ctypes.memset(int(q) + GIB - 4, 5, 4)")
    assert managed("download(int(q) + GIB - 4, 4).hex()") == "05050505"
    managed("[call('cuMemFree', x) for x in (q, p, small)]")
    assert use(emulation) == (0, 0)


def test_others_push_it_out(emulation: Emulation, managed: Worker) -> None:
    managed("p = managed(70 * GIB); q = call('cuMemAlloc', 20 * GIB)")
    inside = CAPACITY - CONTEXT - 20 * GIB
    assert use(emulation) == (CAPACITY - CONTEXT, 70 * GIB - inside)
    # Memory that is not managed moves nowhere.
    assert managed("error('cuMemAlloc', 70 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    managed("call('cuMemFree', q); prefetch(p, 70 * GIB, 0)")
    assert use(emulation) == (70 * GIB, 0)
    managed("prefetch(p, 10 * GIB, -1)")
    assert use(emulation) == (60 * GIB, 10 * GIB)
    managed("call('cuMemFree', p)")
    assert use(emulation) == (0, 0)


def test_not_without_end(managed: Worker) -> None:
    """What lies outside has to fit the host."""
    assert managed("error('cuMemAllocManaged', 1 << 45, 1)") == "CUDA_ERROR_OUT_OF_MEMORY"


def test_nvml_shows_the_card_at_most(managed: Worker) -> None:
    managed("""
        p = managed(85 * GIB)
        import pynvml
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        info = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    """)
    assert managed("info.used") == CAPACITY
    assert managed("info.free") == 0
