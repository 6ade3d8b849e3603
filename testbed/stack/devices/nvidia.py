"""NVIDIA's cards (and emulated ones, which speak the same NVML)."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from testbed.errors import InputError, TestbedError
from testbed.native import nvml as native_nvml
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.driver_root import DriverRoot
from testbed.stack.model import Card
from testbed.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A card as the driver describes it, before any policy.

    Attributes:
        reserved_bytes: Part of its memory that the driver keeps for itself.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    reserved_bytes: int = 0
    numa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessBytes:
    """What the card counts for one process; ``pid`` in this process' namespace."""

    pid: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One look at one card; ``error`` says why it could not be read."""

    uuid: str
    used_bytes: int = 0
    processes: tuple[ProcessBytes, ...] = ()
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """How busy one process kept a card, as NVML sampled it.

    Attributes:
        pid: In this process' namespace.
        stamp_us: The sample's time by the driver's clock (Unix microseconds on hardware).
        sm_pct: Percent of the sample's interval in which its kernels ran.
    """

    pid: int
    stamp_us: int
    sm_pct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationReading:
    """What NVML has sampled of one card since a stamp.

    Attributes:
        processes: Newest sample of each process that was busy; NVML tells nothing of
            those that were not.
        card_stamp_us: Newest sample of the whole card since the stamp, None if there is
            none (or none are kept: then none ever comes).
        card_pct: Its value.
        offered: False where the driver samples no processes (MIG, old cards).
        error: Why NVML gave no answer.
    """

    processes: tuple[ProcessSample, ...] = ()
    card_stamp_us: int | None = None
    card_pct: int | None = None
    offered: bool = True
    error: str = ""


def registered_cards(
    devices: Iterable[Device], config: DeviceConfig, *, unhealthy: Container[str] = ()
) -> tuple[Card, ...]:
    """Return the cards as the node registers them under a configuration.

    What the driver keeps for itself is not there to be promised: two halves of the
    whole would be refused before they reach their caps.
    """
    return tuple(
        Card(
            uuid=device.uuid,
            index=device.index,
            slots=config.deviceSplitCount,
            mem_mib=math.floor(
                (device.memory_bytes - device.reserved_bytes) // MIB * config.deviceMemoryScaling
            ),
            core_pct=math.floor(100 * config.deviceCoreScaling),
            model=model_name(device.name),
            numa=device.numa,
            healthy=device.uuid not in unhealthy,
        )
        for device in devices
    )


def model_name(name: str) -> str:
    """Return a model with HAMi's prefix, which is added only where it is missing."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


class Nvml:
    """An open NVML of one driver root. Not for use from several threads at once."""

    def __init__(self, root: DriverRoot) -> None:
        """Open NVML.

        Raises:
            InputError: the library cannot be loaded or does not start.
        """
        native_nvml.preload(root.nvml)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise InputError(
                f"the driver at {root.path} does not start",
                why=str(error),
                hint="check that the node's cards are there (nvidia-smi, or the driver root)",
            ) from error
        self._handles: dict[str, Any] = {}

    def close(self) -> None:
        self._handles.clear()
        pynvml.nvmlShutdown()

    def devices(self) -> tuple[Device, ...]:
        """Return the cards of the node, in the driver's order.

        Raises:
            TestbedError: a card cannot be described.
        """
        found = []
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
                self._handles[uuid] = handle
                found.append(
                    Device(
                        uuid=uuid,
                        index=index,
                        name=_text(pynvml.nvmlDeviceGetName(handle)),
                        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                        reserved_bytes=_reserved(handle),
                        numa=_numa(handle),
                    )
                )
        except pynvml.NVMLError as error:
            raise TestbedError("the node's cards cannot be listed", why=str(error)) from error
        return tuple(found)

    def read(self, uuid: str) -> CardReading:
        """Return what a card uses now, process by process."""
        try:
            handle = self._handles[uuid]
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
            processes = _merged(
                _optional(
                    lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), required=True
                )
                or [],
                _optional(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or [],
            )
            rates = _optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        except pynvml.NVMLError as error:
            return CardReading(uuid=uuid, error=str(error))
        return CardReading(
            uuid=uuid,
            used_bytes=used,
            processes=processes,
            utilization_pct=None if rates is None else int(rates.gpu),
            memory_utilization_pct=None if rates is None else int(rates.memory),
        )

    def utilization(self, uuid: str, since_us: int) -> UtilizationReading:
        """Return what NVML has sampled of a card after a stamp of its own clock."""
        handle = self._handles.get(uuid)
        if handle is None:
            return UtilizationReading(error="the card is not there")
        try:
            busy = _newer(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
            card = _newer(
                lambda: pynvml.nvmlDeviceGetSamples(
                    handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us
                )
            )
        except pynvml.NVMLError as error:
            return UtilizationReading(error=str(error))
        stamp, value = _newest(card, since_us)
        return UtilizationReading(
            processes=tuple(
                ProcessSample(pid=int(s.pid), stamp_us=int(s.timeStamp), sm_pct=int(s.smUtil))
                for s in busy or ()
                # Also told: processes that stopped being busy before the stamp.
                if int(s.timeStamp) > since_us and int(s.pid) > 0
            ),
            card_stamp_us=stamp,
            card_pct=value,
            offered=busy is not None,
        )

    def unhealthy(self) -> dict[str, str]:
        """Return the cards that do not answer, with the driver's words."""
        sick = {}
        for uuid, handle in self._handles.items():
            try:
                pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError as error:
                sick[uuid] = str(error)
        return sick


def _merged(*lists: Iterable[Any]) -> tuple[ProcessBytes, ...]:
    """Join process lists: a process that computes and draws is in both, with one figure."""
    held: dict[int, int] = {}
    for processes in lists:
        for process in processes:
            # None where the driver may not tell (NVML_VALUE_NOT_AVAILABLE).
            used = int(process.usedGpuMemory or 0)
            held[process.pid] = max(held.get(process.pid, 0), used)
    return tuple(ProcessBytes(pid=pid, bytes=held[pid]) for pid in sorted(held))


def _optional(call: Callable[[], Any], *, required: bool = False) -> Any:
    """Return a call's answer, None where driver or card do not offer it."""
    try:
        return call()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        if required:
            raise
        return None


def _newer(call: Callable[[], Any]) -> Any:
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


def _newest(answer: Any, since_us: int) -> tuple[int | None, int | None]:
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


def _reserved(handle: Any) -> int:
    # Version 2 came with driver 510; older ones do not tell.
    memory = _optional(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2))
    return 0 if memory is None else int(memory.reserved)


def _numa(handle: Any) -> int:
    node = _optional(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle))
    if node is None:
        pci = _optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
        node = None if pci is None else _numa_of_pci(_text(pci.busId))
    # -1: the machine has no NUMA nodes.
    return max(int(node or 0), 0)


def _numa_of_pci(bus_id: str, sysfs: Path = Path("/sys")) -> int | None:
    """Return the NUMA node of a PCI address such as ``00000000:07:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        text = (sysfs / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text()
        return int(text)
    except (OSError, ValueError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
