"""A program on a card, driven line by line by the test: Python code in, JSON out.

Runs under the library (or without it, as control), against the driver double or the
emulated driver. Everything goes through ``dlsym`` (ctypes) or ``cuGetProcAddress``.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
GIB = 1 << 30


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


class PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("max_size", c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    )


class ArrayDescriptor(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
    )


class Array3DDescriptor(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class Memory(ctypes.Structure):
    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_uint64),
        ("reserved", c_uint64),
        ("free", c_uint64),
        ("used", c_uint64),
    )


_cuda: Any = None
_nvml: Any = None


def cuda() -> Any:
    global _cuda
    if _cuda is None:
        _cuda = ctypes.CDLL("libcuda.so.1")
    return _cuda


def nvml() -> Any:
    global _nvml
    if _nvml is None:
        _nvml = ctypes.CDLL("libnvidia-ml.so.1")
        _nvml.nvmlInit_v2()
    return _nvml


def context(dev: int = 0) -> int:
    """cuInit, retain the primary context, make it current; the first error."""
    ctx = c_void_p()
    return (
        cuda().cuInit(0)
        or cuda().cuDevicePrimaryCtxRetain(byref(ctx), dev)
        or cuda().cuCtxSetCurrent(ctx)
    )


def alloc(size: int, name: str = "cuMemAlloc_v2") -> list[int]:
    ptr = c_uint64()
    code = getattr(cuda(), name)(byref(ptr), c_size_t(size))
    return [code, ptr.value]


def managed(size: int) -> list[int]:
    ptr = c_uint64()
    return [cuda().cuMemAllocManaged(byref(ptr), c_size_t(size), 1), ptr.value]


def pitch(width: int, height: int) -> list[int]:
    ptr, row = c_uint64(), c_size_t()
    code = cuda().cuMemAllocPitch_v2(byref(ptr), byref(row), c_size_t(width), c_size_t(height), 4)
    return [code, ptr.value, row.value]


def free(ptr: int) -> int:
    return cuda().cuMemFree_v2(c_uint64(ptr))


def stream() -> int:
    out = c_void_p()
    assert cuda().cuStreamCreate(byref(out), 0) == 0
    return out.value or 0


def alloc_async(size: int, stream: int = 0, suffix: str = "") -> list[int]:
    ptr = c_uint64()
    function = getattr(cuda(), "cuMemAllocAsync" + suffix)
    return [function(byref(ptr), c_size_t(size), c_void_p(stream)), ptr.value]


def free_async(ptr: int, stream: int = 0) -> int:
    return cuda().cuMemFreeAsync(c_uint64(ptr), c_void_p(stream))


def sync() -> int:
    return cuda().cuStreamSynchronize(None)


def default_pool(dev: int = 0) -> int:
    pool = c_void_p()
    assert cuda().cuDeviceGetDefaultMemPool(byref(pool), dev) == 0
    return pool.value or 0


def pool(dev: int = 0, location: int = 1, handles: int = 0) -> int:
    out = c_void_p()
    props = PoolProps(type=1, handles=handles, location=Location(location, dev))
    assert cuda().cuMemPoolCreate(byref(out), byref(props)) == 0
    return out.value or 0


def keep(pool: int, threshold: int) -> int:
    return cuda().cuMemPoolSetAttribute(c_void_p(pool), 4, byref(c_uint64(threshold)))


def reserved(pool: int) -> int:
    value = c_uint64()
    assert cuda().cuMemPoolGetAttribute(c_void_p(pool), 5, byref(value)) == 0
    return value.value


def alloc_pool(size: int, pool: int) -> list[int]:
    ptr = c_uint64()
    code = cuda().cuMemAllocFromPoolAsync(byref(ptr), c_size_t(size), c_void_p(pool), None)
    return [code, ptr.value]


def create(size: int, dev: int = 0, location: int = 1, handles: int = 0) -> list[int]:
    handle = c_uint64()
    prop = AllocationProp(type=1, handles=handles, location=Location(location, dev))
    code = cuda().cuMemCreate(byref(handle), c_size_t(size), byref(prop), c_uint64(0))
    return [code, handle.value]


def reserve(size: int) -> int:
    ptr = c_uint64()
    code = cuda().cuMemAddressReserve(
        byref(ptr), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)
    )
    assert code == 0
    return ptr.value


def map_(ptr: int, size: int, handle: int) -> int:
    return cuda().cuMemMap(
        c_uint64(ptr), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0)
    )


def unmap(ptr: int, size: int) -> int:
    return cuda().cuMemUnmap(c_uint64(ptr), c_size_t(size))


def release(handle: int) -> int:
    return cuda().cuMemRelease(c_uint64(handle))


def retain(addr: int) -> list[int]:
    handle = c_uint64()
    code = cuda().cuMemRetainAllocationHandle(byref(handle), c_void_p(addr))
    return [code, handle.value]


def array(width: int, height: int) -> list[int]:
    out = c_void_p()
    code = cuda().cuArrayCreate_v2(byref(out), byref(ArrayDescriptor(width, height, 0x20, 1)))
    return [code, out.value or 0]


def array3d(width: int, height: int, depth: int, flags: int = 0) -> list[int]:
    out = c_void_p()
    description = Array3DDescriptor(width, height, depth, 0x20, 1, flags)
    return [cuda().cuArray3DCreate_v2(byref(out), byref(description)), out.value or 0]


def mipmapped(width: int, height: int, levels: int) -> list[int]:
    out = c_void_p()
    description = Array3DDescriptor(width, height, 0, 0x20, 1, 0)
    code = cuda().cuMipmappedArrayCreate(byref(out), byref(description), levels)
    return [code, out.value or 0]


def destroy_array(handle: int, name: str = "cuArrayDestroy") -> int:
    return getattr(cuda(), name)(c_void_p(handle))


class End2D(ctypes.Structure):
    _fields_ = (
        *(("x", c_size_t), ("y", c_size_t), ("type", c_int), ("host", c_void_p)),
        *(("device", c_uint64), ("array", c_void_p), ("pitch", c_size_t)),
    )


class Copy2D(ctypes.Structure):
    _fields_ = (("src", End2D), ("dst", End2D), ("width", c_size_t), ("height", c_size_t))


class End3D(ctypes.Structure):
    _fields_ = (
        *(("x", c_size_t), ("y", c_size_t), ("z", c_size_t), ("lod", c_size_t)),
        *(("type", c_int), ("host", c_void_p), ("device", c_uint64), ("array", c_void_p)),
        *(("reserved", c_void_p), ("pitch", c_size_t), ("height", c_size_t)),
    )


class Copy3D(ctypes.Structure):
    _fields_ = (
        *(("src", End3D), ("dst", End3D)),
        *(("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)),
    )


HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4


def _end(kind: Any, type_: int, at: int) -> Any:
    """One end of a copy of a plane or a block: rows of 4096 bytes."""
    if type_ == ARRAY:
        return kind(type=type_, array=at)
    where = {"host": at} if type_ == HOST else {"device": at}
    return kind(type=type_, pitch=4096, **where)


def copy_rows(name: str, src: tuple[int, int], dst: tuple[int, int], rows: int) -> int:
    """Copy rows of 4096 bytes between two (memory type, address)s by a call of either shape."""
    if "2D" in name:
        shape: Any = Copy2D(_end(End2D, *src), _end(End2D, *dst), 4096, rows)
    else:
        shape = Copy3D(_end(End3D, *src), _end(End3D, *dst), 4096, rows // 4, 4)
        shape.src.height = shape.dst.height = rows // 4
    stream = [None] if "Async" in name else []
    return getattr(cuda(), name)(byref(shape), *stream)


class Operand(ctypes.Structure):
    _fields_ = (("type", c_int), ("pointer", c_uint64), ("rest", c_uint64 * 3))


class Operation(ctypes.Structure):
    """CUDA_MEMCPY3D_BATCH_OP of pointers."""

    _fields_ = (
        ("src", Operand),
        ("dst", Operand),
        ("extent", c_size_t * 3),
        ("order", c_int),
        ("flags", c_uint),
    )


def copy_batch(name: str, to: int, src: int, size: int) -> int:
    """Copy by a call that takes lists or attributes; the rest is what the double looks for."""
    stream, attributes = c_void_p(9), c_void_p(5)
    failed = [] if "_v2" in name else [c_void_p(8)]
    if "3D" in name:
        extent = (c_size_t * 3)(size // 4, 2, 2)
        operation = Operation(Operand(1, src), Operand(1, to), extent)
        count = [c_size_t(1)] if "Batch" in name else []
        if "Batch" not in name:
            failed = []
        return getattr(cuda(), name)(*count, byref(operation), *failed, c_uint64(7), stream)
    if "Batch" not in name:
        return getattr(cuda(), name)(
            c_uint64(to), c_uint64(src), c_size_t(size), attributes, stream
        )
    lists = (c_uint64 * 1)(to), (c_uint64 * 1)(src), (c_size_t * 1)(size), c_size_t(1)
    return getattr(cuda(), name)(*lists, attributes, c_void_p(6), c_size_t(7), *failed, stream)


def info() -> list[int]:
    """The code, free, total."""
    available, total = c_size_t(), c_size_t()
    code = cuda().cuMemGetInfo_v2(byref(available), byref(total))
    return [code, available.value, total.value]


def total(dev: int = 0) -> int:
    value = c_size_t()
    assert cuda().cuDeviceTotalMem_v2(byref(value), dev) == 0
    return value.value


def nvml_memory(index: int = 0) -> list[int]:
    """total, free, used, as version 1 tells them."""
    device, memory = c_void_p(), Memory()
    assert nvml().nvmlDeviceGetHandleByIndex_v2(index, byref(device)) == 0
    assert nvml().nvmlDeviceGetMemoryInfo(device, byref(memory)) == 0
    return [memory.total, memory.free, memory.used]


def nvml_instance_memory(index: int = 0) -> list[int]:
    """total, free, used of a card's first instance."""
    card, device, memory = c_void_p(), c_void_p(), Memory()
    assert nvml().nvmlDeviceGetHandleByIndex_v2(index, byref(card)) == 0
    assert nvml().nvmlDeviceGetMigDeviceHandleByIndex(card, 0, byref(device)) == 0
    assert nvml().nvmlDeviceGetMemoryInfo(device, byref(memory)) == 0
    return [memory.total, memory.free, memory.used]


def nvml_memory_v2(index: int = 0) -> list[int]:
    device, memory = c_void_p(), MemoryV2()
    memory.version = ctypes.sizeof(MemoryV2) | 2 << 24
    assert nvml().nvmlDeviceGetHandleByIndex_v2(index, byref(device)) == 0
    assert nvml().nvmlDeviceGetMemoryInfo_v2(device, byref(memory)) == 0
    return [memory.total, memory.reserved, memory.free, memory.used]


def proc(name: str, version: int, flags: int = 0) -> int:
    """The address that cuGetProcAddress_v2 answers."""
    out, found = c_void_p(), c_int()
    get = cuda().cuGetProcAddress_v2
    get.argtypes = [c_char_p, POINTER(c_void_p), c_int, c_uint64, POINTER(c_int)]
    code = get(name.encode(), byref(out), version, flags, byref(found))
    return 0 if code else (out.value or 0)


def at(address: int, *types: Any) -> Any:
    return ctypes.CFUNCTYPE(c_int, *types)(address)


def address(name: str) -> int:
    """The address that dlsym answers."""
    return ctypes.cast(getattr(cuda(), name), c_void_p).value or 0


def fill(step: int = 2 * MIB) -> int:
    """Allocate in falling steps until nothing fits; the number of bytes asked for."""
    held, size = 0, 1 << 36
    while size >= step:
        code, _ = alloc(size)
        if code == 0:
            held += size
        else:
            assert code == 2, code
            size //= 2
    return held


class ProcessInfo(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_uint64), ("gi", c_uint), ("ci", c_uint))


class ProcessInfoV1(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_uint64))


class Sample(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("time", c_uint64), ("sm", c_uint), ("rest", c_uint * 3))


def nvml_device(index: int = 0) -> c_void_p:
    device = c_void_p()
    assert nvml().nvmlDeviceGetHandleByIndex_v2(index, byref(device)) == 0
    return device


def processes(suffix: str = "_v3", room: int = 8) -> list[Any]:
    """[code, count, [[pid, bytes]]]"""
    kind = ProcessInfo if suffix else ProcessInfoV1
    infos, count = (kind * 8)(), c_uint(room)
    function = getattr(nvml(), "nvmlDeviceGetComputeRunningProcesses" + suffix)
    code = function(nvml_device(), byref(count), infos if room else None)
    found = [[infos[i].pid, infos[i].used] for i in range(count.value)] if code == 0 else []
    return [code, count.value, found]


def graphics(room: int = 8) -> list[Any]:
    """[code, count, [[pid, bytes]]]"""
    infos, count = (ProcessInfo * 8)(), c_uint(room)
    function = nvml().nvmlDeviceGetGraphicsRunningProcesses_v3
    code = function(nvml_device(), byref(count), infos if room else None)
    found = [[infos[i].pid, infos[i].used] for i in range(count.value)] if code == 0 else []
    return [code, count.value, found]


class Detail(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("used", c_uint64),
        ("gpu", c_uint),
        ("compute", c_uint),
        ("protected", c_uint64),
    )


class Details(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("mode", c_uint),
        ("count", c_uint),
        ("of", POINTER(Detail)),
    )


def details(mode: int = 0, room: int = 8) -> list[Any]:
    """[code, count, [[pid, bytes]]]"""
    infos = (Detail * 8)()
    asked = Details(version=0x1000000 | ctypes.sizeof(Details), mode=mode, count=room)
    if room:
        asked.of = infos
    code = nvml().nvmlDeviceGetRunningProcessDetailList(nvml_device(), byref(asked))
    found = [[infos[i].pid, infos[i].used] for i in range(asked.count)] if code == 0 else []
    return [code, asked.count, found]


def accounted(room: int = 8) -> list[Any]:
    """[code, pids]"""
    pids, count = (c_uint * 8)(), c_uint(room)
    code = nvml().nvmlDeviceGetAccountingPids(nvml_device(), byref(count), pids if room else None)
    return [code, list(pids[: count.value]) if code == 0 else count.value]


def rates() -> list[int]:
    """The card's, or the container's: code, percent of time, percent of memory traffic."""
    found = (c_uint * 2)()
    return [nvml().nvmlDeviceGetUtilizationRates(nvml_device(), found), *found]


def utilization() -> list[Any]:
    samples, count = (Sample * 8)(), c_uint(8)
    code = nvml().nvmlDeviceGetProcessUtilization(nvml_device(), samples, byref(count), c_uint64(0))
    return [code, [[samples[i].pid, samples[i].sm] for i in range(count.value)]]


class AllocNode(ctypes.Structure):
    _fields_ = (
        ("pool", PoolProps),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("ptr", c_uint64),
    )


class NodeParams(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("reserved", c_int * 3),
        ("alloc", AllocNode),
        ("rest", c_uint64 * 15),
    )


def graph() -> int:
    out = c_void_p()
    assert cuda().cuGraphCreate(byref(out), 0) == 0
    return out.value or 0


def captured() -> int:
    out = c_void_p()
    assert cuda().fake_captured(byref(out)) == 0
    return out.value or 0


def memory_node(graph: int, size: int, call: str = "cuGraphAddMemAllocNode", dev: int = 0) -> int:
    node = c_void_p()
    inner = AllocNode(pool=PoolProps(type=1, location=Location(1, dev)), bytes=size)
    if call == "cuGraphAddMemAllocNode":
        return cuda().cuGraphAddMemAllocNode(
            byref(node), c_void_p(graph), None, c_size_t(0), byref(inner)
        )
    params = NodeParams(type=10, alloc=inner)
    edges = [None] if call.endswith("_v2") else []
    return getattr(cuda(), call)(
        byref(node), c_void_p(graph), None, *edges, c_size_t(0), byref(params)
    )


def instantiate(graph: int) -> int:
    out = c_void_p()
    code = cuda().cuGraphInstantiateWithFlags(byref(out), c_void_p(graph), c_uint64(0))
    assert code == 0, code
    return out.value or 0


def launch(exec_: int, call: str = "cuGraphLaunch") -> int:
    return getattr(cuda(), call)(c_void_p(exec_), None)


def fake_calls(name: str) -> int:
    return cuda().fake_calls(name.encode())


def fake_fail(name: str, code: int = 2, times: int = 1) -> None:
    cuda().fake_fail(name.encode(), code, times)


def fake_peak(card: int = 0) -> int:
    cuda().fake_peak.restype = c_uint64
    return cuda().fake_peak(card)


def fake_used(card: int = 0) -> int:
    cuda().fake_used.restype = c_uint64
    return cuda().fake_used(card)


def main() -> None:
    space = dict(globals())
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                answer = {"value": eval(code, space)}
            except SyntaxError:
                exec(code, space)
                answer = {"value": space.get("answer")}
        except BaseException:  # noqa: BLE001 - whatever it was, the test shows it
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer, default=repr) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
