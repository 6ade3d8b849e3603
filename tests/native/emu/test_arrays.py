"""Arrays and mipmapped arrays: what they cost, and copies to and from them."""

from __future__ import annotations

import pytest
from emu_harness import Worker

MIB = 1 << 20


@pytest.fixture
def arrays(worker: Worker) -> Worker:
    worker("""
        base = used()
        kinds = driver.CUmemorytype
        FLOAT = driver.CUarray_format.CU_AD_FORMAT_FLOAT
        BYTE = driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
        def shape(width, height=0, depth=0, format=FLOAT, channels=1, flags=0):
            made = driver.CUDA_ARRAY3D_DESCRIPTOR()
            made.Width, made.Height, made.Depth = width, height, depth
            made.Format, made.NumChannels, made.Flags = format, channels, flags
            return made
        def create(*arguments, **more):
            return call('cuArray3DCreate', shape(*arguments, **more))
        def move(array, host, width, height, depth, to_array, x=0, y=0, z=0):
            block = driver.CUDA_MEMCPY3D()
            side, other = ('dst', 'src') if to_array else ('src', 'dst')
            setattr(block, side + 'MemoryType', kinds.CU_MEMORYTYPE_ARRAY)
            setattr(block, side + 'Array', array)
            setattr(block, side + 'XInBytes', x)
            setattr(block, side + 'Y', y)
            setattr(block, side + 'Z', z)
            setattr(block, other + 'MemoryType', kinds.CU_MEMORYTYPE_HOST)
            setattr(block, other + 'Host', host)
            setattr(block, other + 'Pitch', width)
            setattr(block, other + 'Height', height)
            block.WidthInBytes, block.Height, block.Depth = width, height, depth
            return driver.cuMemcpy3D(block)[0].name
    """)
    return worker


@pytest.mark.parametrize(
    ("arguments", "cost"),
    [
        ("1024", 2 * MIB),  # 4 KiB: the sum of small ones
        ("1024, 1024", 4 * MIB),
        ("1024, 1025", 6 * MIB),  # 1,032 rows
        ("100, 5000, 0, BYTE, 1", 2 * MIB),  # rows of 128 bytes: 640 KB
        ("1024, 1024, 4", 16 * MIB),
        ("1024, 1024, 4, FLOAT, 4", 64 * MIB),
    ],
)
def test_cost(arrays: Worker, arguments: str, cost: int) -> None:
    arrays(f"a = create({arguments})")
    assert arrays("used() - base") == cost
    arrays("call('cuArrayDestroy', a)")
    assert arrays("used() - base") == 0
    assert arrays("error('cuArrayDestroy', a)") == "CUDA_ERROR_INVALID_HANDLE"


def test_out_of_memory(arrays: Worker) -> None:
    assert arrays("error('cuArray3DCreate', shape(1 << 16, 1 << 16, 8))") == (
        "CUDA_ERROR_OUT_OF_MEMORY"
    )
    assert arrays("used() - base") == 0


def test_copies(arrays: Worker) -> None:
    arrays("""
        a = create(50, 20, 3)
        data = os.urandom(200 * 20 * 3)
        back = bytearray(len(data))
    """)
    assert arrays("move(a, data, 200, 20, 3, True)") == "CUDA_SUCCESS"
    assert arrays("move(a, back, 200, 20, 3, False)") == "CUDA_SUCCESS"
    assert arrays("back == data")
    arrays("part = bytearray(8 * 2)")
    assert arrays("move(a, part, 8, 2, 1, False, x=16, y=5, z=2)") == "CUDA_SUCCESS"
    assert arrays("part[8:] == data[(2 * 20 + 6) * 200 + 16:][:8]")
    # Nothing is reached beyond the array's edges.
    for edge in ("x=8", "y=1", "z=1"):
        assert arrays(f"move(a, data, 200, 20, 3, True, {edge})") == "CUDA_ERROR_INVALID_VALUE"
    arrays("call('cuArrayDestroy', a)")
    assert arrays("move(a, data, 8, 1, 1, True)") == "CUDA_ERROR_INVALID_HANDLE"


def test_rows(arrays: Worker) -> None:
    arrays("""
        a, b = create(64), create(64)
        p = call('cuMemAlloc', 256)
        data = os.urandom(256)
        call('cuMemcpyHtoA', a, 0, data, 256)
        call('cuMemcpyAtoA', b, 0, a, 128, 128)
        call('cuMemcpyAtoD', p, b, 0, 128)
        call('cuMemcpyDtoA', a, 0, p, 64)
        out = bytearray(128)
        call('cuMemcpyAtoH', out, a, 0, 128)
    """)
    assert arrays("download(p, 128) == data[128:]")
    assert arrays("out == data[128:192] + data[64:128]")


def test_descriptors(arrays: Worker) -> None:
    arrays("a = create(50, 20, channels=2)")
    assert arrays(
        "[getattr(call('cuArray3DGetDescriptor', a), n) for n in ('Width', 'Height', 'Depth')]"
    ) == [50, 20, 0]
    assert arrays("call('cuArrayGetDescriptor', a).NumChannels") == 2
    assert arrays("call('cuArrayGetMemoryRequirements', a, 0).size") == 448 * 24


def test_mipmaps(arrays: Worker) -> None:
    arrays("m = call('cuMipmappedArrayCreate', shape(1024, 1024), 20)")
    assert arrays("used() - base") == 6 * MIB  # 4 MiB and a third
    arrays("level = call('cuMipmappedArrayGetLevel', m, 10)")  # of eleven
    assert arrays("call('cuArrayGetDescriptor', level).Width") == 1
    assert arrays("error('cuMipmappedArrayGetLevel', m, 11)") == "CUDA_ERROR_INVALID_VALUE"
    assert arrays("error('cuArrayDestroy', level)") == "CUDA_ERROR_INVALID_HANDLE"
    # Levels do not overlap.
    arrays("first = call('cuMipmappedArrayGetLevel', m, 0)")
    arrays("data = b'a' * (4096 * 1024); back = bytearray(4)")
    assert arrays("move(level, b'last', 4, 1, 1, True)") == "CUDA_SUCCESS"
    assert arrays("move(first, data, 4096, 1024, 1, True)") == "CUDA_SUCCESS"
    assert arrays("move(level, back, 4, 1, 1, False)") == "CUDA_SUCCESS"
    assert arrays("back.decode()") == "last"
    arrays("call('cuMipmappedArrayDestroy', m)")
    assert arrays("used() - base") == 0


def test_bad_shapes(arrays: Worker) -> None:
    for bad in ("0", "8, 8, channels=3", "8, 0, 8", "8, 8, flags=4"):
        assert arrays(f"error('cuArray3DCreate', shape({bad}))") == "CUDA_ERROR_INVALID_VALUE", bad
    assert arrays("error('cuArray3DCreate', shape(8, 8, flags=0x40))") == "CUDA_ERROR_NOT_SUPPORTED"


def test_gone_with_the_context(arrays: Worker) -> None:
    arrays("a = create(1024, 1024); call('cuDevicePrimaryCtxReset', 0); context()")
    assert arrays("used() - base") == 0
    assert arrays("error('cuArrayDestroy', a)") == "CUDA_ERROR_INVALID_HANDLE"
