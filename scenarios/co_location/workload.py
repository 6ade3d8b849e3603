"""What runs in each pod: fill the card until it refuses, hold, free, fill again.

The program uses ``torch.empty``, copies and memsets only and reads back nothing
that a kernel computed, so it says the same on an emulated card and on a real one.
It judges nothing: every fact is one JSON line on standard output, with the node's
time (``time.time()``), and the testbed compares those lines with what the card
itself counted.

Each allocator needs a process of its own, since PyTorch chooses it at import. After
filling up, the process holds its memory until the testbed creates the file
``/tmp/release/<allocator>``, so that all pods of a case are full at one moment.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
RELEASE = Path("/tmp/release")

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


def emit(event: str, **fields: object) -> None:
    """Print one fact as a JSON line."""
    print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)


def own_bytes(nvml: Any, handle: Any) -> int:
    """Return what NVML counts for this process: allocations and context."""
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid():
            return int(process.usedGpuMemory or 0)
    return 0


def visible_sizes(torch: Any, nvml: Any, handle: Any) -> dict[str, int]:
    """Return the card's size as five interfaces tell it, bytes."""
    driver = ctypes.CDLL("libcuda.so.1")
    total, free, size = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    device = ctypes.c_int()
    calls = (
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDeviceTotalMem_v2(ctypes.byref(total), device),
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(size)),
    )
    if any(calls):
        raise RuntimeError(f"driver calls answered {calls}")
    return {
        "torch_properties": int(torch.cuda.get_device_properties(0).total_memory),
        "torch_mem_get_info": int(torch.cuda.mem_get_info(0)[1]),
        "driver_total_mem": total.value,
        "driver_mem_get_info": size.value,
        "nvml_total": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
    }


def is_out_of_memory(torch: Any, error: Exception) -> bool:
    """Tell whether an error is the one that a full card gives.

    With the cache off PyTorch reports the driver's error as it is (AcceleratorError).
    """
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def fill(torch: Any, used: Any, ceiling: int, blocks: list[Any]) -> tuple[bool, str]:
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
                block = torch.empty(step * MIB, dtype=torch.uint8, device="cuda")
                block.zero_()
            except Exception as error:
                if not is_out_of_memory(torch, error):
                    raise
                error_class = type(error).__name__
                break
            blocks.append(block)
    return bool(error_class), error_class


def wait_for_release(phase: str, seconds: float) -> bool:
    """Wait until the testbed lets this phase go on."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (RELEASE / phase).exists():
            return True
        time.sleep(0.02)
    return False


def copy_round_trip(torch: Any, mib: int) -> bool:
    """Copy random bytes to the card and back and compare them on the CPU."""
    data = torch.frombuffer(bytearray(os.urandom(mib * MIB)), dtype=torch.uint8)
    there = torch.empty(data.numel(), dtype=torch.uint8, device="cuda")
    there.copy_(data)
    back = torch.empty_like(data)
    back.copy_(there)
    return bool(torch.equal(data, back))


def one_allocator(allocator: str, parameters: dict[str, Any]) -> int:
    """Run every step with one allocator, in a process of its own."""
    import pynvml as nvml
    import torch

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    torch.cuda.init()
    torch.empty(1, device="cuda")  # makes the context
    emit(
        "visible",
        phase=allocator,
        torch=torch.__version__,
        card=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        devices=torch.cuda.device_count(),
        sizes=visible_sizes(torch, nvml, handle),
    )
    blocks: list[Any] = []
    ceiling = int(parameters["ceiling_mib"]) * MIB
    refused, error_class = fill(torch, lambda: own_bytes(nvml, handle), ceiling, blocks)
    emit(
        "holding",
        phase=allocator,
        bytes=own_bytes(nvml, handle),
        refused=refused,
        error=error_class,
        blocks=len(blocks),
        free=int(torch.cuda.mem_get_info(0)[0]),
    )
    released = wait_for_release(allocator, float(parameters["hold_seconds"]))
    emit("released", phase=allocator, bytes=own_bytes(nvml, handle), in_time=released)

    blocks.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    freed = own_bytes(nvml, handle)
    again = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    again.zero_()
    emit(
        "survived",
        phase=allocator,
        freed_to=freed,
        again=own_bytes(nvml, handle),
        equal=copy_round_trip(torch, 64),
    )
    return 0


def main() -> int:
    """Run all allocators one after the other; each failure is reported as an event."""
    parameters = json.loads(os.environ["WORKLOAD_PARAMETERS"])
    if len(sys.argv) > 1:
        return one_allocator(sys.argv[1], parameters)
    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid(), allocators=parameters["allocators"])
    worst = 0
    for allocator in parameters["allocators"]:
        child = subprocess.run(
            [sys.executable, __file__, allocator],
            env={**os.environ, **ALLOCATORS[allocator]},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if child.returncode:
            worst = 1
            tail = child.stderr.strip().splitlines()[-12:]
            emit("error", phase=allocator, code=child.returncode, text="\n".join(tail))
    emit("finished", code=worst)
    return worst


if __name__ == "__main__":
    sys.exit(main())
