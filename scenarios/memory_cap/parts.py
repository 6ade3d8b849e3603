"""Parts of one PyTorch process: fill, grow and free, load models."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from facts import emit, wait_for_release

MIB = 1 << 20
#: Of filling, MiB. The caching allocators serve 1 MiB from a segment of 2.
STEPS_MIB = (1024, 256, 64, 20, 2, 1)
#: A layer of 4096 x 4096 in fp32.
WIDTH, LAYER_MIB = 4096, 64
GROWTH_MIB = 128


def own_bytes() -> tuple[int, str]:
    """Return what NVML counts for this process, bytes, and the card's uuid."""
    import pynvml as nvml

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    found = sum(int(p.usedGpuMemory or 0) for p in processes if p.pid == os.getpid())
    return found, nvml.nvmlDeviceGetUUID(handle)


def fill(torch: Any, phase: str, index: int, parameters: dict[str, Any]) -> None:
    """Fill until refused or at the ceiling, and hold it."""
    blocks: list[Any] = []
    ceiling = int(parameters["cap_mib"]) * int(parameters["ceiling_pct"]) // 100 * MIB
    for step in STEPS_MIB:
        while own_bytes()[0] + step * MIB <= ceiling:
            try:
                blocks.append(torch.empty(step * MIB, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                break
    total, uuid = own_bytes()
    emit("filled", phase=phase, uuid=uuid, bytes=total, processes=1)
    emit("holding", phase=phase, index=index)
    in_time = wait_for_release(phase, float(parameters["hold_seconds"]))
    emit("released", phase=phase, in_time=in_time)


def grow(torch: Any, phase: str, index: int, parameters: dict[str, Any]) -> None:
    """Grow to nine tenths, free every other block, again and again; then free all."""
    emit("holding", phase=phase, index=index, ticks=1)
    emit("released", phase=phase, in_time=wait_for_release(phase, parameters["hold_seconds"]))
    before, uuid = own_bytes()
    goal = int(parameters["cap_mib"]) * MIB * 9 // 10
    blocks: list[Any] = []
    refused = peak = 0
    for _ in range(int(parameters["growth_rounds"])):
        while own_bytes()[0] + GROWTH_MIB * MIB <= goal:
            try:
                blocks.append(torch.empty(GROWTH_MIB * MIB, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                refused += 1
                break
        peak = max(peak, own_bytes()[0])
        del blocks[::2]
        torch.cuda.empty_cache()
    blocks.clear()
    torch.cuda.empty_cache()
    after = own_bytes()[0]
    emit("grown", phase=phase, uuid=uuid, before=before, peak=peak, after=after, refused=refused)


def model(torch: Any, phase: str, index: int, parameters: dict[str, Any]) -> None:
    """Load a model that just fits, then one of a layer more."""
    emit("holding", phase=phase, index=index, ticks=1)
    emit("released", phase=phase, in_time=wait_for_release(phase, parameters["hold_seconds"]))
    room = int(parameters["cap_mib"]) * MIB - own_bytes()[0]
    fits = room // (LAYER_MIB * MIB)
    for layers in (fits, fits + 1):
        error = ""
        try:
            loaded = torch.nn.Sequential(*(_layer(torch) for _ in range(layers)))
            total = own_bytes()[0]
            del loaded
        except torch.OutOfMemoryError as caught:
            error, total = type(caught).__name__, own_bytes()[0]
        torch.cuda.empty_cache()
        emit("model", phase=phase, layers=layers, more=layers > fits, error=error, bytes=total)


def _layer(torch: Any) -> Any:
    """Return a layer with weights that were never set: the card computes nothing here."""
    build = torch.nn.utils.skip_init
    return build(torch.nn.Linear, WIDTH, WIDTH, bias=False, device="cuda")


def main(phase: str, index: int, parameters: dict[str, Any]) -> None:
    """Run one part."""
    import torch

    torch.empty(1, device="cuda")  # makes the context
    torch.cuda.empty_cache()
    part = {"growth": grow, "model": model}.get(phase, fill)
    part(torch, phase, index, parameters)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(os.environ["WORKLOAD_PARAMETERS"]))
