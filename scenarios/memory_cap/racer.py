"""One of several processes that take a pod's memory at once, by the driver API."""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
#: Blocks of up to 1 << 8 granules; a refusal halves the largest.
GRANULE, LARGEST = 2 * MIB, 8


def take(driver: ctypes.CDLL, choose: random.Random, ceiling_mib: int) -> tuple[list[Any], int]:
    """Allocate blocks of all sizes until refused or at the ceiling; return them and refusals.

    Raises:
        OSError: the driver answered something else.
    """
    held: list[Any] = []
    taken = refused = 0
    largest = LARGEST
    while largest >= 0 and taken < ceiling_mib * MIB:
        size = GRANULE << choose.randint(0, largest)
        pointer = ctypes.c_uint64()
        code = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
        if code == OUT_OF_MEMORY:
            refused += 1
            largest -= 1
        elif code:
            raise OSError(f"error {code}")
        else:
            held.append(pointer)
            taken += size
    return held, refused


def main(number: int, ceiling_mib: int) -> int:
    """At ``go`` allocate until refused and say how much, at ``free`` free it all, to the end."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    code = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if code:
        print(f"no context: {code}", flush=True)
        return 1
    driver.cuCtxSetCurrent(context)
    print("ready", flush=True)
    choose = random.Random(number)
    held: list[Any] = []
    for line in sys.stdin:
        if line.strip() == "go":
            try:
                held, refused = take(driver, choose, ceiling_mib)
            except OSError as error:
                print(error, flush=True)
                return 1
            print(f"{len(held)} {refused}", flush=True)
        else:
            codes = [driver.cuMemFree_v2(pointer) for pointer in held]
            held.clear()
            print("error: not freed" if any(codes) else "freed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
