"""Stream-ordered allocation: what pools reserve, use and give back."""

from __future__ import annotations

import pytest
from emu_harness import Worker

MIB = 1 << 20


@pytest.fixture
def pool(worker: Worker) -> Worker:
    worker("""
        attributes = driver.CUmemPool_attribute
        stream = call('cuStreamCreate', 0)
        pool = call('cuDeviceGetDefaultMemPool', 0)
        base = used()
        def ask(name, which=None):
            return int(call('cuMemPoolGetAttribute', which or pool,
                            getattr(attributes, 'CU_MEMPOOL_ATTR_' + name)))
        def threshold(value, which=None):
            call('cuMemPoolSetAttribute', which or pool,
                 attributes.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, driver.cuuint64_t(value))
        def allocate(size):
            return call('cuMemAllocAsync', size, stream)
        def free(pointer):
            call('cuMemFreeAsync', pointer, stream)
        def settle():
            call('cuStreamSynchronize', stream)
    """)
    return worker


def test_reserves_granules(pool: Worker) -> None:
    pool("held = [allocate(100 * 1024) for _ in range(30)]")
    assert pool("ask('USED_MEM_CURRENT')") == 30 * 100 * 1024
    assert pool("ask('RESERVED_MEM_CURRENT')") == 4 * MIB
    assert pool("used() - base") == 4 * MIB
    pool("big = allocate(7 * MIB)")
    assert pool("ask('RESERVED_MEM_CURRENT')") == 12 * MIB
    assert pool("used() - base") == 12 * MIB
    assert pool("len({int(p) for p in held})") == 30


def test_freed_memory_returns_at_synchronisation(pool: Worker) -> None:
    pool("p = allocate(64 * MIB); free(p)")
    assert pool("(ask('USED_MEM_CURRENT'), ask('RESERVED_MEM_CURRENT'))") == [0, 64 * MIB]
    assert pool("used() - base") == 64 * MIB
    pool("settle()")
    assert pool("used() - base") == 0
    assert pool("ask('RESERVED_MEM_HIGH')") == 64 * MIB
    assert pool("ask('USED_MEM_HIGH')") == 64 * MIB


def test_threshold_keeps_and_trim_gives(pool: Worker) -> None:
    pool("threshold(1 << 62); p = allocate(64 * MIB); q = allocate(1000); free(p); settle()")
    assert pool("used() - base") == 66 * MIB
    # What is reserved is used again, and costs nothing more.
    pool("p = allocate(60 * MIB)")
    assert pool("used() - base") == 66 * MIB
    pool("free(p); call('cuMemPoolTrimTo', pool, 10 * MIB)")
    assert pool("used() - base") == 10 * MIB
    pool("call('cuMemPoolTrimTo', pool, 0)")
    assert pool("used() - base") == 2 * MIB  # q lives there
    pool("call('cuMemFree', q); call('cuMemPoolTrimTo', pool, 0)")
    assert pool("used() - base") == 0


def test_out_of_memory(pool: Worker) -> None:
    pool("free_bytes = call('cuMemGetInfo')[0]")
    assert pool("error('cuMemAllocAsync', free_bytes + 1, stream)") == "CUDA_ERROR_OUT_OF_MEMORY"
    pool("p = allocate(free_bytes)")
    assert pool("error('cuMemAllocAsync', 1, stream)") == "CUDA_ERROR_OUT_OF_MEMORY"
    pool("free(p); settle()")
    assert pool("used() - base") == 0


def test_data_and_reuse(pool: Worker) -> None:
    pool("threshold(1 << 62); p = allocate(3 * MIB); data = os.urandom(3 * MIB); upload(p, data)")
    assert pool("download(p, len(data)) == data")
    pool("free(p); q = allocate(3 * MIB)")
    assert pool("int(p) == int(q)")
    # The host got the pages back in between.
    assert pool("download(q, 4096) == bytes(4096)")


def test_own_pool(pool: Worker) -> None:
    pool("""
        props = driver.CUmemPoolProps()
        props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        own = call('cuMemPoolCreate', props)
        p = call('cuMemAllocFromPoolAsync', 10 * MIB, own, stream)
    """)
    assert pool("(ask('USED_MEM_CURRENT', own), ask('USED_MEM_CURRENT'))") == [10 * MIB, 0]
    pool("call('cuDeviceSetMemPool', 0, own); q = allocate(2 * MIB)")
    assert pool("ask('USED_MEM_CURRENT', own)") == 12 * MIB
    # Destroyed with memory in use: that lives on until it is freed.
    pool("call('cuMemPoolDestroy', own); upload(q, b'x' * 100)")
    assert pool("used() - base") == 12 * MIB
    pool("free(p); free(q)")
    assert pool("used() - base") == 0
    assert pool("error('cuMemPoolTrimTo', own, 0)") == "CUDA_ERROR_INVALID_VALUE"


def test_many_blocks(pool: Worker) -> None:
    """A long random life: the card's count is the pool's, and blocks never overlap."""
    pool("""
        import random
        chance = random.Random(1)
        live = {}
        for turn in range(3000):
            if live and chance.random() < 0.5:
                p = chance.choice(list(live))
                free(driver.CUdeviceptr(p))
                del live[p]
            else:
                size = chance.choice([1, 512, 513, 70_000, MIB - 1, MIB, 3 * MIB, 9 * MIB])
                live[int(allocate(size))] = size
            if turn % 500 == 0:
                settle()
        ends = sorted((p, p + n) for p, n in live.items())
        overlaps = sum(a[1] > b[0] for a, b in zip(ends, ends[1:]))
    """)
    assert pool("overlaps") == 0
    assert pool("used() - base == ask('RESERVED_MEM_CURRENT')")
    assert pool("ask('RESERVED_MEM_CURRENT') >= ask('USED_MEM_CURRENT')")
    pool("[free(driver.CUdeviceptr(p)) for p in live]; settle()")
    assert pool("(used() - base, ask('USED_MEM_CURRENT'), ask('RESERVED_MEM_CURRENT'))") == [
        0,
        0,
        0,
    ]
