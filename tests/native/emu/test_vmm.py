"""Virtual memory management: physical memory lives while a handle or a mapping does."""

from __future__ import annotations

import pytest
from emu_harness import Emulation, Worker

MIB = 1 << 20


@pytest.fixture
def vmm(worker: Worker) -> Worker:
    worker("""
        base = used()
        def create(size):
            return call('cuMemCreate', size, device_property(), 0)
        def reserve(size):
            return call('cuMemAddressReserve', size, 0, 0, 0)
        def map_(at, size, handle):
            call('cuMemMap', at, size, 0, handle, 0)
            call('cuMemSetAccess', at, size, [access()], 1)
    """)
    return worker


def test_life_of_physical_memory(vmm: Worker) -> None:
    vmm("h = create(20 * MIB)")
    assert vmm("used() - base") == 20 * MIB
    vmm("at = reserve(64 * MIB)")
    assert vmm("used() - base") == 20 * MIB  # addresses are free
    vmm("map_(at, 20 * MIB, h); call('cuMemRelease', h)")
    assert vmm("used() - base") == 20 * MIB  # mapped
    vmm("upload(int(at) + 5, b'hello')")
    assert vmm("download(int(at) + 5, 5).decode()") == "hello"
    vmm("call('cuMemUnmap', at, 20 * MIB)")
    assert vmm("used() - base") == 0
    vmm("call('cuMemAddressFree', at, 64 * MIB)")


def test_handle_outlives_mapping(vmm: Worker) -> None:
    vmm("h = create(2 * MIB); at = reserve(4 * MIB); map_(at, 2 * MIB, h); upload(at, b'abc')")
    vmm("call('cuMemUnmap', at, 2 * MIB)")
    assert vmm("used() - base") == 2 * MIB
    vmm("map_(int(at) + 2 * MIB, 2 * MIB, h)")
    assert vmm("download(int(at) + 2 * MIB, 3).decode()") == "abc"
    vmm("call('cuMemRelease', h); call('cuMemUnmap', int(at) + 2 * MIB, 2 * MIB)")
    assert vmm("used() - base") == 0
    assert vmm("error('cuMemRelease', h)") == "CUDA_ERROR_INVALID_VALUE"


def test_one_handle_at_two_addresses(vmm: Worker) -> None:
    vmm("h = create(2 * MIB); a = reserve(2 * MIB); b = reserve(2 * MIB)")
    vmm("map_(a, 2 * MIB, h); map_(b, 2 * MIB, h); upload(a, b'same')")
    assert vmm("download(b, 4).decode()") == "same"
    vmm("retained = call('cuMemRetainAllocationHandle', int(a))")
    assert vmm("int(retained) == int(h)")
    vmm("[call('cuMemRelease', h) for _ in range(2)]")
    vmm("call('cuMemUnmap', a, 2 * MIB)")
    assert vmm("used() - base") == 2 * MIB
    vmm("call('cuMemUnmap', b, 2 * MIB)")
    assert vmm("used() - base") == 0


def test_copies_and_memsets_over_mappings(emulation: Emulation, vmm: Worker) -> None:
    """As PyTorch's expandable segments use it: many handles side by side."""
    vmm("""
        at = reserve(40 * MIB)
        handles = [create(2 * MIB) for _ in range(20)]
        for i, h in enumerate(handles):
            map_(int(at) + i * 2 * MIB, 2 * MIB, h)
        data = os.urandom(7 * MIB)
        upload(int(at) + MIB, data)
    """)
    assert vmm("download(int(at) + MIB, len(data)) == data")
    assert emulation.state().slots[0].resident_bytes == 8 * MIB - MIB
    vmm("call('cuMemsetD8', at, 0, 40 * MIB)")
    assert emulation.state().slots[0].resident_bytes == 0
    assert vmm("download(int(at) + 2 * MIB, 4096) == bytes(4096)")
    vmm("call('cuMemUnmap', at, 40 * MIB); [call('cuMemRelease', h) for h in handles]")
    assert vmm("used() - base") == 0
    assert emulation.state().slots[0].resident_bytes == 0


def test_no_access_before_set_access(vmm: Worker) -> None:
    vmm("h = create(2 * MIB); at = reserve(2 * MIB); call('cuMemMap', at, 2 * MIB, 0, h, 0)")
    assert vmm("error('cuMemsetD8', at, 1, 8)") == "CUDA_ERROR_INVALID_VALUE"


def test_bad_calls(vmm: Worker) -> None:
    assert vmm("error('cuMemCreate', MIB, device_property(), 0)") == "CUDA_ERROR_INVALID_VALUE"
    assert vmm("error('cuMemAddressReserve', 4096, 0, 0, 0)") == "CUDA_ERROR_INVALID_VALUE"
    vmm("h = create(2 * MIB); at = reserve(4 * MIB); map_(at, 2 * MIB, h)")
    assert vmm("error('cuMemMap', at, 2 * MIB, 0, h, 0)") == "CUDA_ERROR_ALREADY_MAPPED"
    assert vmm("error('cuMemMap', int(at) + 2 * MIB, 4 * MIB, 0, h, 0)") == (
        "CUDA_ERROR_INVALID_VALUE"
    )
    assert vmm("error('cuMemAddressFree', at, 4 * MIB)") == "CUDA_ERROR_INVALID_VALUE"
    assert vmm("error('cuMemUnmap', int(at) + 2 * MIB, 2 * MIB)") == "CUDA_ERROR_INVALID_VALUE"
    assert vmm("error('cuMemFree', at)") == "CUDA_ERROR_INVALID_VALUE"


def test_out_of_memory(vmm: Worker) -> None:
    vmm("left = call('cuMemGetInfo')[0] // (2 * MIB) * 2 * MIB; h = create(left)")
    assert vmm("error('cuMemCreate', 2 * MIB, device_property(), 0)") == "CUDA_ERROR_OUT_OF_MEMORY"
    vmm("call('cuMemRelease', h)")
    assert vmm("used() - base") == 0


def test_before_any_context(emulation: Emulation) -> None:
    worker = emulation.start()
    worker("call('cuInit', 0); h = call('cuMemCreate', 2 * MIB, device_property(), 0)")
    (slot,) = emulation.state().slots
    assert (slot.context_bytes, slot.memory_bytes) == (0, 2 * MIB)
