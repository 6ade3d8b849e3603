"""Device memory that several processes share: by a handle, and by a descriptor."""

from __future__ import annotations

import pytest
from emu_harness import Emulation, Worker

MIB = 1 << 20
CONTEXT = 424 * MIB


@pytest.fixture
def pair(emulation: Emulation) -> tuple[Worker, Worker]:
    """Two processes with a context: who exports, who imports."""
    workers = emulation.start(), emulation.start()
    for worker in workers:
        worker("context()")
    return workers


def give(owner: Worker, other: Worker) -> None:
    owner("h = call('cuIpcGetMemHandle', p)")
    data = owner("ctypes.string_at(int(h.getPtr()), 64).hex()")
    other(f"h = driver.CUipcMemHandle(); data = bytes.fromhex({data!r})")
    other("ctypes.memmove(int(h.getPtr()), data, 64)")


def open_(other: Worker) -> None:
    other("q = call('cuIpcOpenMemHandle', h, 1)")


def test_handle(pair: tuple[Worker, Worker]) -> None:
    owner, other = pair
    owner("p = call('cuMemAlloc', 5 * MIB); before = os.urandom(MIB); upload(int(p) + MIB, before)")
    give(owner, other)
    open_(other)
    assert other("download(int(q) + MIB, MIB).hex()") == owner("before.hex()")
    other("upload(int(q) + 4 * MIB, b'from the other')")
    assert owner("download(int(p) + 4 * MIB, 14).decode()") == "from the other"
    # Only the owner is charged.
    assert owner("used()") == 6 * MIB + 2 * CONTEXT
    # Who opens it twice gets the same memory, and closes it twice.
    assert other("int(call('cuIpcOpenMemHandle', h, 1)) == int(q)")
    other("call('cuIpcCloseMemHandle', q)")
    assert other("download(int(q) + 4 * MIB, 4).decode()") == "from"
    other("call('cuIpcCloseMemHandle', q)")
    assert other("error('cuIpcCloseMemHandle', q)") == "CUDA_ERROR_INVALID_VALUE"
    owner("call('cuMemFree', p)")
    assert owner("used()") == 2 * CONTEXT


def test_zeroes_are_seen_by_both(emulation: Emulation, pair: tuple[Worker, Worker]) -> None:
    owner, other = pair
    owner("p = call('cuMemAlloc', 4 * MIB)")
    give(owner, other)
    open_(other)
    other("call('cuMemsetD8', q, 1, 4 * MIB)")
    owner("call('cuMemsetD8', int(p) + 100, 0, 3 * MIB)")  # which it never touched itself
    assert other("download(int(q) + 99, 2).hex()") == "0100"
    assert other("download(int(q) + 2 * MIB, 64) == bytes(64)")
    assert other("download(int(q) + 3 * MIB + 99, 2).hex()") == "0001"
    other("call('cuIpcCloseMemHandle', q)")
    owner("call('cuMemFree', p)")
    assert [slot.resident_bytes for slot in emulation.state().slots] == [0, 0]


def test_bounds(pair: tuple[Worker, Worker]) -> None:
    owner, other = pair
    owner("p = call('cuMemAlloc', 3 * MIB)")
    give(owner, other)
    open_(other)
    assert other("error('cuMemsetD8', q, 1, 3 * MIB + 1)") == "CUDA_ERROR_INVALID_VALUE"
    assert other("error('cuMemFree', q)") == "CUDA_ERROR_INVALID_VALUE"  # not its own


def test_what_cannot_be_exported(pair: tuple[Worker, Worker]) -> None:
    owner, _ = pair
    owner("""
        managed, pooled = call('cuMemAllocManaged', MIB, 1), call('cuMemAllocAsync', MIB, 0)
        p = call('cuMemAlloc', MIB); h = call('cuIpcGetMemHandle', p)
    """)
    assert owner("error('cuIpcGetMemHandle', managed)") == "CUDA_ERROR_INVALID_VALUE"
    assert owner("error('cuIpcGetMemHandle', pooled)") == "CUDA_ERROR_INVALID_VALUE"
    assert owner("error('cuIpcGetMemHandle', 4096)") == "CUDA_ERROR_INVALID_VALUE"
    # As on hardware, the exporter has it already.
    assert owner("error('cuIpcOpenMemHandle', h, 1)") == "CUDA_ERROR_INVALID_CONTEXT"
    owner("empty = driver.CUipcMemHandle()")
    assert owner("error('cuIpcOpenMemHandle', empty, 1)") == "CUDA_ERROR_INVALID_HANDLE"


def test_gone(pair: tuple[Worker, Worker]) -> None:
    owner, other = pair
    owner("p = call('cuMemAlloc', MIB)")
    give(owner, other)
    owner("call('cuMemFree', p)")
    assert other("error('cuIpcOpenMemHandle', h, 1)") == "CUDA_ERROR_MAP_FAILED"
    assert owner("download(call('cuMemAlloc', MIB), 64) == bytes(64)")


def test_dead_owner(pair: tuple[Worker, Worker]) -> None:
    """Its memory is back at once on the card; who has it open keeps the bytes."""
    owner, other = pair
    owner("p = call('cuMemAlloc', 2 * MIB); upload(p, b'still')")
    give(owner, other)
    open_(other)
    owner.kill()
    assert other("used()") == CONTEXT
    assert other("download(q, 5).decode()") == "still"
    other("call('cuIpcCloseMemHandle', q)")


def test_other_pid_namespace(emulation: Emulation) -> None:
    owner, other = emulation.start(), emulation.start(own_namespace=True)
    for worker in (owner, other):
        worker("context()")
    owner("p = call('cuMemAlloc', MIB)")
    give(owner, other)
    # Whatever runs under that number there, or nothing: it has no such memory. (With the
    # same /proc mounted the number means the owner after all.)
    assert other("os.getpid()") == 1
    other("import re; code = driver.cuIpcOpenMemHandle(h, 1)[0].name")
    assert other("code") in ("CUDA_ERROR_MAP_FAILED", "CUDA_SUCCESS")


def test_closed_descriptors(pair: tuple[Worker, Worker]) -> None:
    owner, other = pair
    owner("p = call('cuMemAlloc', MIB); upload(p, b'kept')")
    give(owner, other)
    owner("os.closerange(3, 4096)")
    assert owner("error('cuIpcGetMemHandle', p)") == "CUDA_ERROR_OPERATING_SYSTEM"
    assert other("error('cuIpcOpenMemHandle', h, 1)") == "CUDA_ERROR_MAP_FAILED"
    assert owner("download(p, 4).decode()") == "kept"


# --- descriptors of physical memory ------------------------------------------------------


@pytest.fixture
def exporter(pair: tuple[Worker, Worker]) -> tuple[Worker, Worker]:
    for worker in pair:
        worker("""
            POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            base = used()
            def create(size, type_=POSIX):
                wish = device_property()
                wish.requestedHandleTypes = type_
                return call('cuMemCreate', size, wish, 0)
            def map_(handle, size):
                at = call('cuMemAddressReserve', size, 0, 0, 0)
                call('cuMemMap', at, size, 0, handle, 0)
                call('cuMemSetAccess', at, size, [access()], 1)
                return at
        """)
    return pair


def test_descriptor(exporter: tuple[Worker, Worker]) -> None:
    owner, other = exporter
    owner("h = create(4 * MIB); at = map_(h, 4 * MIB); upload(at, b'exported')")
    owner("fd = call('cuMemExportToShareableHandle', h, POSIX, 0)")
    path = f"/proc/{owner.process.pid}/fd/{owner('int(fd)')}"
    other(f"fd = os.open({path!r}, os.O_RDWR)")
    other("h = call('cuMemImportFromShareableHandle', fd, POSIX); os.close(fd)")
    other("at = map_(h, 4 * MIB)")
    assert other("download(at, 8).decode()") == "exported"
    other("upload(int(at) + 3 * MIB, b'back')")
    assert owner("download(int(at) + 3 * MIB, 4).decode()") == "back"
    assert owner("used() - base") == 4 * MIB  # charged once
    prop = "call('cuMemGetAllocationPropertiesFromHandle', h)"
    assert other(f"int({prop}.location.id)") == 0
    other("call('cuMemUnmap', at, 4 * MIB); call('cuMemRelease', h)")
    owner("call('cuMemUnmap', at, 4 * MIB); call('cuMemRelease', h); os.close(int(fd))")
    assert owner("used() - base") == 0


def test_only_what_was_made_for_it(exporter: tuple[Worker, Worker]) -> None:
    owner, _ = exporter
    owner("NONE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE")
    owner("h = create(2 * MIB, NONE)")
    assert owner("error('cuMemExportToShareableHandle', h, POSIX, 0)") == "CUDA_ERROR_INVALID_VALUE"
    owner("null = os.open('/dev/null', os.O_RDWR)")
    assert owner("error('cuMemImportFromShareableHandle', null, POSIX)") == (
        "CUDA_ERROR_INVALID_VALUE"
    )
    assert owner("error('cuMemImportFromShareableHandle', 9999, POSIX)") == (
        "CUDA_ERROR_INVALID_VALUE"
    )
    assert owner("os.fstat(null).st_rdev > 0")  # the program's own was left open
