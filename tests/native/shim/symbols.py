"""The table of all driver symbols: what the library does with each.

``python tests/native/shim/symbols.py`` writes it anew from hooks.h, the driver's names and the
reasons in tests/data; a test compares. The marks:

- gate: passes the throttle, or tells it something (captures, callbacks, streams);
- count: takes or gives device memory, and is charged;
- report: its answer is the container's, not the card's;
- pass: goes to the driver as it is; with the reason where it could hold memory or take time.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data"
HOOKS = ROOT / "testbed/native/shim/hooks.h"
TABLE = ROOT / "testbed/native/shim/symbols.txt"

REPORT = re.compile(r"TotalMem|MemGetInfo|GetProcAddress|^cuInit$")
GATE = re.compile(
    r"^cu(Launch|GraphLaunch|GraphExec|GraphNodeSetEnabled|Memset|Memcpy|StreamBegin|StreamEnd"
    r"|StreamDestroy|StreamAddCallback|EventSynchronize)"
)
#: Words of a name behind which memory may be taken or work be started. Rather one too many:
#: the answer to a false alarm is a line with a reason.
SUSPICIOUS = re.compile(
    r"Alloc|Create|Import|IpcOpen|Reserve|Load|HostRegister|Retain|Attach|Instantiate"
    r"|Map(?!ped)|AddNode|Add\w*Node|MemPool|GraphMem|Mapped|CtxFrom|Clone|SetLimit"
    r"|CtxSetFlags|PrimaryCtx|MemRequirements|MemoryRequirements"
    r"|Launch|Memset|Memcpy|MemPrefetch|MemDiscard|BatchMemOp|WriteValue|WaitValue|Execute|Submit"
)
#: What gives back, or only looks.
HARMLESS = re.compile(
    r"Destroy|Unmap|PoolGet|PoolExport|PoolSetAccess|GetState|NodeGet|UnLoad|Unload|GetAttribute"
    r"|ToArray|TrimTo$|cuStreamAttach|GetMappedTo|MapRange|DeviceGet\w*MemPool|GetLoadingMode"
    r"|TensorMap(?!EncodeTiled)|LogsRegister|GetMipmap|GetMipmapped|SetMipmap|Dependen"
)


#: Of NVML: what tells how much memory there is, who uses a card, and how much.
NVML_SUSPICIOUS = re.compile(
    r"MemoryInfo|MemSizeInfo|MemoryUsage|FbUsage|Process|Accounting|Utilization|Sample"
    r"|Attributes|PowerUsage"
)
NVML_HARMLESS = re.compile(r"NvLink")


def nvml_names() -> set[str]:
    """Return NVML's functions: those of its public bindings, and the emulated library's own."""
    bindings = importlib.util.find_spec("pynvml")
    assert bindings is not None and bindings.origin is not None
    called = re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"', Path(bindings.origin).read_text())
    unsupported = (ROOT / "testbed/native/emu/nvml_unsupported.def").read_text()
    return {*called, *re.findall(r"^N\((nvml\w+)\)", unsupported, re.MULTILINE)}


def nvml_hooks() -> set[str]:
    return set(re.findall(r"\bHOOK\((nvml\w+),", HOOKS.read_text()))


def nvml_reasons() -> dict[str, str]:
    return _reasons("nvml_not_hooked.txt")


def nvml_undecided(candidates: set[str]) -> list[str]:
    """Return the functions of NVML that nobody has decided on."""
    decided = nvml_hooks() | set(nvml_reasons())
    return sorted(
        name
        for name in candidates - decided
        if NVML_SUSPICIOUS.search(name) and not NVML_HARMLESS.search(name)
    )


def names() -> set[str]:
    return set((DATA / "cuda_driver_names.txt").read_text().split())


def hooks() -> set[str]:
    return set(re.findall(r"\bHOOK\((cu\w+),", HOOKS.read_text()))


def reasons() -> dict[str, str]:
    return _reasons("cuda_not_hooked.txt")


def _reasons(file: str) -> dict[str, str]:
    lines = (DATA / file).read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line.strip() and not line.startswith("#"))


def mark(name: str, hooked: bool) -> str:
    """Return a symbol's mark, empty where nobody has decided."""
    if hooked:
        return "report" if REPORT.search(name) else "gate" if GATE.search(name) else "count"
    decided = name in reasons() or not SUSPICIOUS.search(name) or HARMLESS.search(name)
    return "pass" if decided else ""


def table() -> str:
    """Return the table's text."""
    hooked, why = hooks(), reasons()
    lines = [
        "# All symbols of the CUDA driver API that are known, and what libvgpu.so does with each:",
        "# gate (throttled), count (charged), report (answers for the container), pass.",
        "# Written by tests/native/shim/symbols.py.",
    ]
    for name in sorted(names()):
        row = f"{name} {mark(name, name in hooked) or 'UNDECIDED'}"
        lines.append(f"{row}: {why[name]}" if name in why else row)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table())
