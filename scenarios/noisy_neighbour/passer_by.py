"""A process that comes and goes: context, memory, work, and an end, good or bad.

By the driver API, since importing PyTorch takes longer than all the rest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

MIB = 1 << 20
BLOCKS, BLOCK_MIB, FILLS = 4, 64, 50


def main(kind: str) -> int:
    """Use the card for a moment; ``crash`` ends in the middle of it."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, size = ctypes.c_void_p(), ctypes.c_size_t(BLOCK_MIB * MIB)
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        return 1
    driver.cuCtxSetCurrent(context)
    for _ in range(BLOCKS):
        pointer = ctypes.c_uint64()
        if driver.cuMemAlloc_v2(ctypes.byref(pointer), size):
            return 1
        for _ in range(FILLS):
            driver.cuMemsetD8Async(pointer, 1, size, None)
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return int(driver.cuCtxSynchronize())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
