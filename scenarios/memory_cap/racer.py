"""One of several processes that take a pod's memory at once, by the driver API."""

from __future__ import annotations

import ctypes
import random
import sys

MIB = 1 << 20
OUT_OF_MEMORY = 2
#: Blocks of up to 1 << 8 granules; a refusal halves the largest.
GRANULE, LARGEST = 2 * MIB, 8


def main(number: int, ceiling_mib: int) -> int:
    """Allocate until refused or at the ceiling, say how much, hold it until stdin ends."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, taken, refused = ctypes.c_void_p(), 0, 0
    code = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if code:
        print(f"no context: {code}", flush=True)
        return 1
    driver.cuCtxSetCurrent(context)
    print("ready", flush=True)
    sys.stdin.readline()
    choose, largest = random.Random(number), LARGEST
    while largest >= 0 and taken < ceiling_mib * MIB:
        size = GRANULE << choose.randint(0, largest)
        pointer = ctypes.c_uint64()
        code = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
        if code == OUT_OF_MEMORY:
            refused += 1
            largest -= 1
        elif code:
            print(f"error {code}", flush=True)
            return 1
        else:
            taken += size
    print(f"{taken} {refused}", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
