"""What allocations cost, when they fail, and what is in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from emu_harness import Emulation, Worker

MIB = 1 << 20
GIB = 1 << 30
CAPACITY = (81920 - 870) * MIB
CONTEXT = 424 * MIB


def test_sizes_of_the_card(emulation: Emulation, worker: Worker) -> None:
    assert worker("call('cuMemGetInfo')") == [CAPACITY - CONTEXT, CAPACITY]
    assert worker("call('cuDeviceTotalMem', 0)") == CAPACITY


@pytest.mark.parametrize(
    ("sizes", "cost"),
    [
        ([1], 2 * MIB),
        ([512] * 4096, 2 * MIB),  # small ones are summed
        ([512] * 4097, 4 * MIB),
        ([MIB - 1], 2 * MIB),
        ([MIB], 2 * MIB),
        ([2 * MIB + 1], 4 * MIB),
        ([MIB, MIB], 2 * MIB),  # up to 1 MiB, which an H200 packs (docs/hardware.md)
        ([MIB + 1, MIB + 1], 4 * MIB),  # above it each by itself
        ([3 * GIB], 3 * GIB),
    ],
)
def test_cost(worker: Worker, sizes: list[int], cost: int) -> None:
    worker(f"before = used(); held = [call('cuMemAlloc', n) for n in {sizes}]")
    assert worker("used() - before") == cost
    worker("[call('cuMemFree', p) for p in held]")
    assert worker("used() - before") == 0


def test_fails_at_the_right_byte(worker: Worker) -> None:
    worker("free = call('cuMemGetInfo')[0]")
    assert worker("error('cuMemAlloc', free + 1)") == "CUDA_ERROR_OUT_OF_MEMORY"
    worker("whole = call('cuMemAlloc', free)")
    assert worker("call('cuMemGetInfo')[0]") == 0
    assert worker("error('cuMemAlloc', 1)") == "CUDA_ERROR_OUT_OF_MEMORY"
    worker("call('cuMemFree', whole); again = call('cuMemAlloc', free)")


def test_bad_calls(worker: Worker) -> None:
    assert worker("error('cuMemAlloc', 0)") == "CUDA_ERROR_INVALID_VALUE"
    assert worker("error('cuMemAlloc', 1 << 62)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert worker("error('cuMemFree', 12345)") == "CUDA_ERROR_INVALID_VALUE"
    worker("p = call('cuMemAlloc', 4096)")
    assert worker("error('cuMemFree', int(p) + 512)") == "CUDA_ERROR_INVALID_VALUE"
    worker("call('cuMemFree', p)")
    assert worker("error('cuMemFree', p)") == "CUDA_ERROR_INVALID_VALUE"


def test_without_context(emulation: Emulation) -> None:
    worker = emulation.start()
    assert worker("error('cuMemAlloc', 4096)") == "CUDA_ERROR_NOT_INITIALIZED"
    worker("call('cuInit', 0)")
    assert worker("error('cuMemAlloc', 4096)") == "CUDA_ERROR_INVALID_CONTEXT"


def test_pitch_and_managed_cost_like_others(worker: Worker) -> None:
    worker("before = used(); p, pitch = call('cuMemAllocPitch', 1000, 3000, 4)")
    assert worker("pitch") == 1024
    assert worker("used() - before") == 4 * MIB  # 3,072,000 bytes
    worker("m = call('cuMemAllocManaged', 64 * MIB, 1)")
    assert worker("used() - before") == 68 * MIB
    # The program itself may use managed memory.
    worker("ctypes.memset(int(m), 7, 100)")
    assert worker("download(m, 3)[:3].hex()") == "070707"
    worker("call('cuMemsetD8', m, 0, 64 * MIB)")
    assert worker("ctypes.string_at(int(m), 100) == bytes(100)")


def test_pinned_memory_costs_the_card_nothing(worker: Worker) -> None:
    worker("before = used(); h = call('cuMemHostAlloc', 8 * MIB, 0)")
    assert worker("used() - before") == 0
    worker("d = call('cuMemAlloc', MIB); upload(d, b'x' * MIB)")
    worker("call('cuMemcpyDtoHAsync', h, d, MIB, 0)")
    assert worker("ctypes.string_at(int(h), MIB) == b'x' * MIB")
    worker("call('cuMemFreeHost', h)")
    assert worker("error('cuMemFreeHost', h)") == "CUDA_ERROR_INVALID_VALUE"


def test_registered_memory(worker: Worker) -> None:
    worker("buffer = ctypes.create_string_buffer(4096); at = ctypes.addressof(buffer)")
    worker("call('cuMemHostRegister', at, 4096, 0)")
    assert (
        worker("error('cuMemHostRegister', at + 100, 8, 0)")
        == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    )
    assert worker("int(call('cuMemHostGetDevicePointer', at + 8, 0)) == at + 8")
    worker("call('cuMemHostUnregister', at)")
    assert worker("error('cuMemHostUnregister', at)") == "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"


def test_copies_move_bytes(worker: Worker) -> None:
    worker("""
        data = os.urandom(3 * MIB + 17)
        a, b = call('cuMemAlloc', len(data)), call('cuMemAlloc', len(data))
        upload(a, data)
        call('cuMemcpyDtoD', b, a, len(data))
    """)
    assert worker("download(b, len(data)) == data")
    assert worker("download(int(b) + 1000, 50) == data[1000:1050]")
    worker("call('cuMemcpy', int(b) + 5, int(b), 1000)")  # overlapping
    assert worker("download(int(b) + 5, 1000) == data[:1000]")
    worker("call('cuMemcpyDtoDAsync', a, int(b) + MIB, 4096, 0)")
    assert worker("download(a, 4096) == data[MIB:MIB + 4096]")


def test_copies_stay_inside(worker: Worker) -> None:
    worker("p = call('cuMemAlloc', 4 * MIB); data = bytes(8 * MIB)")
    assert worker("error('cuMemcpyHtoD', p, data, 8 * MIB)") == "CUDA_ERROR_INVALID_VALUE"
    assert worker("error('cuMemcpyHtoD', 4096, data, 8)") == "CUDA_ERROR_INVALID_VALUE"
    assert worker("error('cuMemsetD8', int(p) + 4 * MIB - 1, 1, 2)") == "CUDA_ERROR_INVALID_VALUE"
    assert worker("error('cuMemsetD32', int(p) + 2, 1, 1)") == "CUDA_ERROR_INVALID_VALUE"


def test_planes(worker: Worker) -> None:
    worker("""
        p, pitch = call('cuMemAllocPitch', 100, 50, 4)
        data = os.urandom(100 * 50)
        plane = driver.CUDA_MEMCPY2D()
        plane.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        plane.srcHost = data
        plane.srcPitch = 100
        plane.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        plane.dstDevice = p
        plane.dstPitch = pitch
        plane.WidthInBytes = 100
        plane.Height = 50
        call('cuMemcpy2D', plane)
    """)
    assert worker("download(int(p) + 7 * pitch, 100) == data[700:800]")
    worker("call('cuMemsetD2D8', p, pitch, 9, 100, 50)")
    assert worker("download(int(p) + 49 * pitch, 100) == bytes([9]) * 100")
    assert worker("download(int(p) + 48 * pitch + 100, 4) == bytes(4)")  # not the gap


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("cuMemsetD8", 0xAB, "abababababababab"),
        ("cuMemsetD16", 0xABCD, "cdabcdabcdabcdab"),
        ("cuMemsetD32", 0x01020304, "0403020104030201"),
    ],
)
def test_memsets(worker: Worker, function: str, value: int, expected: str) -> None:
    worker(f"p = call('cuMemAlloc', 4096); call('{function}', p, {value}, 1024)")
    assert worker("download(p, 8).hex()") == expected


def test_zero_memset_gives_pages_back(emulation: Emulation, worker: Worker) -> None:
    worker("p = call('cuMemAlloc', 64 * MIB); call('cuMemsetD8', p, 1, 64 * MIB)")
    assert emulation.state().slots[0].resident_bytes == 64 * MIB
    worker("call('cuMemsetD8', int(p) + 100, 0, 64 * MIB - 200)")
    assert emulation.state().slots[0].resident_bytes == 8192  # first and last page
    assert worker("download(p, 102)[98:].hex()") == "01010000"
    assert worker("download(int(p) + 32 * MIB, 100) == bytes(100)")
    worker("call('cuMemFree', p)")
    assert emulation.state().slots[0].resident_bytes == 0


def test_the_host_pays_only_for_touched_pages(worker: Worker) -> None:
    worker("""
        def rss():
            return int(open('/proc/self/statm').read().split()[1]) * 4096
        before = rss()
        p = call('cuMemAlloc', 60 * GIB)
        call('cuMemsetD8', p, 0, 60 * GIB)
        upload(int(p) + 30 * GIB, b'x' * MIB)
    """)
    assert worker("download(int(p) + 59 * GIB, 64) == bytes(64)")
    assert worker("rss() - before") < 32 * MIB


def test_budget(make_emulation: Callable[..., Emulation]) -> None:
    emulation = make_emulation(budget_bytes=64 * MIB)
    first = emulation.start()
    second = emulation.start()
    first("context(); p = call('cuMemAlloc', GIB); call('cuMemsetD8', p, 1, 40 * MIB)")
    second("context(); p = call('cuMemAlloc', GIB)")
    # The budget is the card's: all its processes share it.
    assert second("error('cuMemsetD8', p, 1, 25 * MIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    log = second.log()
    assert "VGPU_EMU_MEMORY_BUDGET" in log
    assert str(64 * MIB) in log and str(40 * MIB) in log
    assert emulation.state().budget_hits == 1
    assert second("download(p, 8) == bytes(8)")  # nothing was touched
    second("call('cuMemsetD8', p, 1, 24 * MIB)")
    # What is not resident costs nothing: zero again, and there is room.
    second("call('cuMemsetD8', p, 0, 24 * MIB)")
    first("call('cuMemsetD8', int(p) + 40 * MIB, 1, 24 * MIB)")
    # A dead process's pages are free.
    first.kill()
    second("call('cuMemsetD8', p, 1, 64 * MIB)")


def test_budget_variable(make_emulation: Callable[..., Emulation]) -> None:
    emulation = make_emulation(budget_bytes=1 * MIB)
    worker = emulation.start(VGPU_EMU_MEMORY_BUDGET="8M", VGPU_EMU_LOG="off")
    worker("context(); p = call('cuMemAlloc', GIB); call('cuMemsetD8', p, 1, 8 * MIB)")
    assert worker("error('cuMemsetD8', int(p) + 8 * MIB, 1, 1)") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert worker.log() == ""


def test_pointer_attributes(worker: Worker) -> None:
    worker("""
        kinds = driver.CUpointer_attribute
        p = call('cuMemAlloc', 5000)
        h = call('cuMemHostAlloc', 5000, 0)
        def ask(name, at):
            return call('cuPointerGetAttribute', getattr(kinds, 'CU_POINTER_ATTRIBUTE_' + name), at)
    """)
    assert worker("int(ask('MEMORY_TYPE', int(p) + 4999))") == 2
    assert worker("int(ask('MEMORY_TYPE', int(h)))") == 1
    assert worker("ask('DEVICE_ORDINAL', p)") == 0
    assert worker("int(ask('RANGE_START_ADDR', int(p) + 99)) == int(p)")
    assert worker("ask('RANGE_SIZE', p)") == 5000
    assert (
        worker("error('cuPointerGetAttribute', kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096)")
        == "CUDA_ERROR_INVALID_VALUE"
    )
    assert worker("list(map(int, call('cuMemGetAddressRange', int(p) + 7))) == [int(p), 5000]")


def test_silent(emulation: Emulation, worker: Worker) -> None:
    worker("p = call('cuMemAlloc', MIB); error('cuMemFree', 1); error('cuMemAlloc', 1 << 45)")
    assert worker.log() == ""


def test_freed_addresses_come_back_empty(emulation: Emulation, worker: Worker) -> None:
    for size in ("4096", "5 * MIB", "GIB"):
        worker(f"p = call('cuMemAlloc', {size}); upload(p, b'secret'); before = int(p)")
        worker(f"upload(int(p) + {size} - 6, b'secret'); call('cuMemFree', p)")
        assert emulation.state().slots[0].resident_bytes == 0
        assert worker("error('cuMemsetD8', before, 1, 8)") == "CUDA_ERROR_INVALID_VALUE"
        worker(f"p = call('cuMemAlloc', {size})")
        assert worker("int(p) == before")
        assert worker(f"download(p, 6) + download(int(p) + {size} - 6, 6) == bytes(12)")
        worker("call('cuMemFree', p)")


def test_addresses_are_bounded(worker: Worker) -> None:
    """What waits for its next use has an end, however many sizes there are."""
    worker("""
        def addresses():
            return int(open('/proc/self/statm').read().split()[0]) * 4096
        before = addresses()
        for n in range(1, 1000):
            call('cuMemFree', call('cuMemAlloc', n * 40 * MIB % (70 * GIB) + MIB))
    """)
    assert worker("addresses() - before") <= 129 * GIB
    worker("""
        for n in range(1, 3000):
            call('cuMemFree', call('cuMemAlloc', n * 4096))
        maps = len(open('/proc/self/maps').readlines())
    """)
    assert worker("maps") < 3000


@pytest.mark.parametrize("libraries", ["plain"], indirect=True)  # the sanitizer needs addresses
def test_waiting_addresses_make_room(worker: Worker) -> None:
    """Under `ulimit -v` a free gives what an allocation of another size needs."""
    worker("""
        import resource
        now = int(open('/proc/self/statm').read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (now + 5 * GIB, resource.RLIM_INFINITY))
        for n in range(1, 4):
            call('cuMemFree', call('cuMemAlloc', n * GIB + MIB))
    """)
    assert worker("error('cuMemAlloc', 6 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"
    worker("p = call('cuMemAlloc', 4 * GIB)")
