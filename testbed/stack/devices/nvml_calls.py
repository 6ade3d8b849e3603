"""NVML's answers in shape: what may be missing is told from what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pynvml

from testbed.stack.devices.readings import ProcessBytes


def merged(*lists: Iterable[Any]) -> tuple[ProcessBytes, ...]:
    """Join process lists: a process that computes and draws is in both, with one figure."""
    held: dict[int, int] = {}
    for processes in lists:
        for process in processes:
            # None where the driver may not tell (NVML_VALUE_NOT_AVAILABLE).
            used = int(process.usedGpuMemory or 0)
            held[process.pid] = max(held.get(process.pid, 0), used)
    return tuple(ProcessBytes(pid=pid, bytes=held[pid]) for pid in sorted(held))


def optional(call: Callable[[], Any], *, required: bool = False) -> Any:
    """Return a call's answer, None where driver or card do not offer it."""
    try:
        return call()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        if required:
            raise
        return None


def newer(call: Callable[[], Any]) -> Any:
    """Return samples; empty where there are no new ones, None where none are offered."""
    try:
        return call()
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
    ):
        return None
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InsufficientSize):
        return ()  # nobody was busy; or somebody began between the two calls
    except pynvml.NVMLError as error:
        # pynvml asks for the number first and takes "success, none" for an error.
        if error.value == pynvml.NVML_SUCCESS:
            return ()
        raise


def newest(answer: Any, since_us: int) -> tuple[int | None, int | None]:
    """Return (stamp, value) of the newest device sample after a stamp."""
    if not answer:
        return None, None
    kind, samples = answer
    fresh = [sample for sample in samples if int(sample.timeStamp) > since_us]
    if not fresh:
        return None, None
    newest = max(fresh, key=lambda sample: int(sample.timeStamp))
    value = newest.sampleValue
    by_kind = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: value.dVal,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: value.ulVal,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: value.ullVal,
    }
    return int(newest.timeStamp), int(by_kind.get(kind, value.uiVal))


def reserved(handle: Any) -> int:
    # Version 2 came with driver 510; older ones do not tell.
    memory = optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2))
    return 0 if memory is None else int(memory.reserved)


def numa(handle: Any) -> int:
    node = optional(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle))
    if node is None:
        pci = optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
        node = None if pci is None else numa_of_pci(text(pci.busId))
    # -1: the machine has no NUMA nodes.
    return max(int(node or 0), 0)


def numa_of_pci(bus_id: str, sysfs: Path = Path("/sys")) -> int | None:
    """Return the NUMA node of a PCI address such as ``00000000:07:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        text = (sysfs / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text()
        return int(text)
    except (OSError, ValueError):
        return None


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
