"""Run by the tests in a process of its own: takes lines of code, answers in JSON.

The names below are there for the code: ``call`` for what must succeed, ``error`` for the
name of what must fail, ``context``, ``used`` (bytes of the card, over all processes).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from typing import Any

from cuda.bindings import driver

MIB = 1 << 20
GIB = 1 << 30


def call(name: str, *arguments: Any) -> Any:
    result = getattr(driver, name)(*arguments)
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name}: {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


def error(name: str, *arguments: Any) -> str:
    code: str = getattr(driver, name)(*arguments)[0].name
    return code


def context(ordinal: int = 0) -> Any:
    call("cuInit", 0)
    made = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))
    call("cuCtxSetCurrent", made)
    return made


def used() -> int:
    free, total = call("cuMemGetInfo")
    return int(total - free)


def raw(name: str) -> Any:
    """A function of libcuda by its exported name, for what cuda.bindings leaves out."""
    return getattr(ctypes.CDLL("libcuda.so.1"), name)


def device_property(ordinal: int = 0) -> Any:
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = ordinal
    return prop


def access(ordinal: int = 0) -> Any:
    desc = driver.CUmemAccessDesc()
    desc.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    desc.location.id = ordinal
    desc.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return desc


def upload(pointer: Any, data: bytes) -> None:
    call("cuMemcpyHtoD", pointer, data, len(data))


def download(pointer: Any, length: int) -> bytes:
    data = bytearray(length)
    call("cuMemcpyDtoH", data, pointer, length)
    return bytes(data)


def main() -> None:
    names = dict(globals())
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                compiled = compile(code, "<test>", "eval")
            except SyntaxError:
                exec(compile(code, "<test>", "exec"), names)
                answer: dict[str, Any] = {"value": None}
            else:
                answer = {"value": eval(compiled, names)}
            text = json.dumps(answer, default=lambda value: str(value))
        except Exception:  # noqa: BLE001  the test gets it
            text = json.dumps({"error": traceback.format_exc()})
        os.write(1, text.encode() + b"\n")


if __name__ == "__main__":
    main()
