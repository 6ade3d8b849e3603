"""Takes memory of the card by the driver API until it is refused, and holds it."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
STEPS_MIB = (256, 32, 2)
LM_ID_NEWLM, RTLD_NOW = -1, 2


def opened(name: str) -> Any:
    """Load the driver: by its name, or a copy of it in a namespace of its own."""
    if "/" not in name:
        return ctypes.CDLL(name)
    # The emulated driver looks for its cards beside itself.
    os.environ.setdefault("VGPU_EMU_CARDS", "/usr/local/vgpu/cards")
    here = ctypes.CDLL(None)
    here.dlmopen.restype = here.dlsym.restype = ctypes.c_void_p
    here.dlsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    here.dlmopen.argtypes = (ctypes.c_long, ctypes.c_char_p, ctypes.c_int)
    handle = here.dlmopen(LM_ID_NEWLM, name.encode(), RTLD_NOW)
    if not handle:
        raise OSError(f"cannot load {name}")
    return ctypes.CDLL(str(Path(name)), handle=handle)


def main(name: str, ceiling_mib: int) -> int:
    """Take, say how much, and hold it until stdin ends."""
    driver = opened(name)
    context, taken = ctypes.c_void_p(), 0
    code = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if code:
        print(f"no context: {code}", flush=True)
        return 1
    driver.cuCtxSetCurrent(context)
    for step in STEPS_MIB:
        while taken + step <= ceiling_mib:
            pointer = ctypes.c_uint64()
            if driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(step * MIB)):
                break
            taken += step
    print(taken * MIB, flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
