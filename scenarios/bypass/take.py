"""Takes memory of the card by the driver API until it is refused, and holds it."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
STEPS_MIB = (256, 32, 2)
LM_ID_NEWLM, RTLD_NOW, RTLD_DEEPBIND = -1, 2, 8


def opened(name: str, how: str) -> Any:
    """Load the driver: by its name, or a copy of it in a namespace of its own."""
    if how == "global":
        return ctypes.CDLL(None)
    if how == "deepbind":
        return ctypes.CDLL(name, mode=RTLD_NOW | RTLD_DEEPBIND)
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


def allocator(driver: Any, how: str) -> Any:
    """Return the function that allocates: the driver's, as anybody finds it, or past dlsym."""
    if how != "lookup":
        return driver.cuMemAlloc_v2
    lookup = ctypes.CDLL("libc.so.6").dlsym
    lookup.restype, lookup.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(
        lookup(driver._handle, b"cuMemAlloc_v2")
    )


def main(name: str, how: str, ceiling_mib: int) -> int:
    """Take, say how much, and hold it until stdin ends."""
    driver = opened(name, how)
    allocate = allocator(driver, how)
    context, taken = ctypes.c_void_p(), 0
    code = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if code:
        print(f"no context: {code}", flush=True)
        return 1
    driver.cuCtxSetCurrent(context)
    for step in STEPS_MIB:
        while taken + step <= ceiling_mib:
            pointer = ctypes.c_uint64()
            if allocate(ctypes.byref(pointer), ctypes.c_size_t(step * MIB)):
                break
            taken += step
    print(taken * MIB, flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
