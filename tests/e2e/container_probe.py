"""What a container gets of its cards: runs inside it, prints one JSON line.

``see`` lists the visible cards; ``fill CARD MOST`` allocates on one of them until it
refuses, or until MOST MiB are allocated; ``hold CARD MOST`` fills and keeps it. Needs
nothing but the driver, so that it runs in half a second and under an empty environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

MIB = 1 << 20
STEPS_MIB = (1024, 256, 64, 16, 2)
OUT_OF_MEMORY = 2


def driver() -> ctypes.CDLL | None:
    """Return the driver, None in a container that has none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def see(cuda: ctypes.CDLL) -> list[dict[str, object]]:
    """Return the visible cards in the driver's order."""
    count, found = ctypes.c_int(), []
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for card in range(count.value):
        raw, total = ctypes.create_string_buffer(16), ctypes.c_size_t()
        cuda.cuDeviceGetUuid_v2(raw, card)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(total), card)
        text = raw.raw.hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        found.append({"uuid": "GPU-" + "-".join(parts), "mib": total.value // MIB})
    return found


def memory(cuda: ctypes.CDLL) -> dict[str, int]:
    """Return what the card says of itself, MiB."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return {"free": free.value // MIB, "total": total.value // MIB}


def fill(cuda: ctypes.CDLL, card: int, most: int) -> dict[str, object]:
    """Allocate in falling steps; return how much it was and what the card said."""
    context, address, allocated = ctypes.c_void_p(), ctypes.c_uint64(), 0
    code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), card)
    code = code or cuda.cuCtxSetCurrent(context)
    before = memory(cuda)
    for step in STEPS_MIB:
        while not code and allocated + step <= most:
            code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(step * MIB))
            allocated += 0 if code else step
        refused, code = code, 0 if code == OUT_OF_MEMORY else code
    return {"allocated": allocated, "refused": refused, "before": before, "after": memory(cuda)}


def main() -> None:
    verb, *numbers = sys.argv[1:]
    cuda = driver()
    fact: dict[str, object] = {
        "pid": os.getpid(),
        "uid": os.getuid(),
        "env": {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NVIDIA_", "LD_"))},
        "library": "/usr/local/vgpu/libvgpu.so" in Path("/proc/self/maps").read_text(),
        "init": cuda.cuInit(0) if cuda else None,
        "cards": see(cuda) if cuda else [],
    }
    if verb != "see" and cuda:
        fact |= fill(cuda, int(numbers[0]), int(numbers[1]))
    print(json.dumps(fact), flush=True)
    if verb == "hold":
        time.sleep(600)


if __name__ == "__main__":
    main()
