"""Memory: fill every card until it refuses, hold, free, fill again.

``torch.empty``, copies and memsets only: nothing that a kernel computed is read back,
so it says the same on an emulated card and on a real one. Each allocator needs a
process of its own, since PyTorch chooses it at import. After filling up, the process
holds its memory until the testbed releases the phase, so that all pods of a case are
full at one moment.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

from facts import emit, wait_for_release

MIB = 1 << 20

#: Environment by which PyTorch chooses its allocator (PyTorch 2.x, "CUDA semantics").
ALLOCATORS: dict[str, dict[str, str]] = {
    "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "native": {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}

#: Sizes of the blocks, MiB. The caching allocators serve a tensor of 2 MiB from a
#: segment of 20, one of 1 MiB from a segment of 2: the last step is what fills
#: the card to within 2 MiB.
STEPS_MIB = (1024, 256, 64, 20, 2, 1)


def own_bytes(nvml: Any, handle: Any) -> int:
    """Return what NVML counts for this process: allocations and context."""
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid():
            return int(process.usedGpuMemory or 0)
    return 0


def visible_sizes(torch: Any, nvml: Any, handle: Any, ordinal: int) -> dict[str, int]:
    """Return the card's size as five interfaces tell it, bytes."""
    driver = ctypes.CDLL("libcuda.so.1")
    total, free, size = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    device = ctypes.c_int()
    with torch.cuda.device(ordinal):
        calls = (
            driver.cuDeviceGet(ctypes.byref(device), ordinal),
            driver.cuDeviceTotalMem_v2(ctypes.byref(total), device),
            driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(size)),
        )
    if any(calls):
        raise RuntimeError(f"driver calls answered {calls}")
    return {
        "torch_properties": int(torch.cuda.get_device_properties(ordinal).total_memory),
        "torch_mem_get_info": int(torch.cuda.mem_get_info(ordinal)[1]),
        "driver_total_mem": total.value,
        "driver_mem_get_info": size.value,
        "nvml_total": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
    }


def is_out_of_memory(torch: Any, error: Exception) -> bool:
    """Tell whether an error is the one that a full card gives.

    With the cache off PyTorch reports the driver's error as it is (AcceleratorError).
    """
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def fill(
    torch: Any, used: Any, ceiling: int, blocks: list[Any], device: str = "cuda"
) -> tuple[bool, str]:
    """Allocate in falling steps until the card refuses or the ceiling is reached.

    Returns:
        Whether the card refused, and the class of its error.
    """
    error_class = ""
    for step in STEPS_MIB:
        # A step that does not fit below the ceiling says nothing of a cap: a smaller one
        # may still meet it.
        while used() + step * MIB <= ceiling:
            try:
                block = torch.empty(step * MIB, dtype=torch.uint8, device=device)
                block.zero_()
            except Exception as error:
                if not is_out_of_memory(torch, error):
                    raise
                error_class = type(error).__name__
                break
            blocks.append(block)
    return bool(error_class), error_class


def copy_round_trip(torch: Any, mib: int, device: str) -> bool:
    """Copy random bytes to the card and back and compare them on the CPU."""
    data = torch.frombuffer(bytearray(os.urandom(mib * MIB)), dtype=torch.uint8)
    there = torch.empty(data.numel(), dtype=torch.uint8, device=device)
    there.copy_(data)
    back = torch.empty_like(data)
    back.copy_(there)
    return bool(torch.equal(data, back))


def main(allocator: str, index: int, parameters: dict[str, Any]) -> None:
    """Run every step with one allocator, on all cards of the container."""
    import pynvml as nvml
    import torch

    nvml.nvmlInit()
    torch.cuda.init()
    cards: list[tuple[int, Any, str]] = []
    for ordinal in range(torch.cuda.device_count()):
        handle = nvml.nvmlDeviceGetHandleByIndex(ordinal)
        cards.append((ordinal, handle, nvml.nvmlDeviceGetUUID(handle)))
        torch.empty(1, device=f"cuda:{ordinal}")  # makes the context
        emit(
            "visible",
            phase=allocator,
            torch=torch.__version__,
            card=nvml.nvmlDeviceGetName(handle),
            uuid=cards[-1][2],
            sizes=visible_sizes(torch, nvml, handle, ordinal),
        )
    blocks: list[Any] = []
    ceiling = int(parameters["ceiling_mib"]) * MIB
    for ordinal, handle, uuid in cards:
        refused, error_class = fill(
            torch, lambda h=handle: own_bytes(nvml, h), ceiling, blocks, f"cuda:{ordinal}"
        )
        emit(
            "filled",
            phase=allocator,
            uuid=uuid,
            bytes=own_bytes(nvml, handle),
            refused=refused,
            error=error_class,
            blocks=len(blocks),
            free=int(torch.cuda.mem_get_info(ordinal)[0]),
        )
    emit("holding", phase=allocator, index=index)
    in_time = wait_for_release(allocator, float(parameters["hold_seconds"]))
    emit("released", phase=allocator, in_time=in_time)

    blocks.clear()
    for ordinal, handle, uuid in cards:
        device = f"cuda:{ordinal}"
        torch.cuda.synchronize(ordinal)
        with torch.cuda.device(ordinal):
            torch.cuda.empty_cache()
        freed = own_bytes(nvml, handle)
        again = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
        again.zero_()
        emit(
            "survived",
            phase=allocator,
            uuid=uuid,
            freed_to=freed,
            again=own_bytes(nvml, handle),
            equal=copy_round_trip(torch, 64, device),
        )
        del again


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(os.environ["WORKLOAD_PARAMETERS"]))
