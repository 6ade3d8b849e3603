"""NVIDIA's cards (and emulated ones, which speak the same NVML)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Iterable
from typing import Any

import pynvml

from testbed.errors import InputError, TestbedError
from testbed.native import nvml as native_nvml
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.driver_root import DriverRoot
from testbed.stack.devices.nvml_calls import merged, newer, newest, numa, optional, reserved, text
from testbed.stack.devices.readings import (
    CardReading,
    Device,
    ProcessSample,
    UtilizationReading,
)
from testbed.stack.model import Card
from testbed.units import MIB

#: Of one call: a card that fails floods its driver with errors.
_MOST_EVENTS = 1000


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
        self._events: Any = None

    def close(self) -> None:
        self._free_events()
        self._handles.clear()
        with contextlib.suppress(pynvml.NVMLError):
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
                uuid = text(pynvml.nvmlDeviceGetUUID(handle))
                self._handles[uuid] = handle
                found.append(
                    Device(
                        uuid=uuid,
                        index=index,
                        name=text(pynvml.nvmlDeviceGetName(handle)),
                        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                        reserved_bytes=reserved(handle),
                        numa=numa(handle),
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
            processes = merged(
                optional(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), required=True)
                or [],
                optional(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or [],
            )
            rates = optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        except pynvml.NVMLError as error:
            return CardReading(uuid=uuid, error=str(error))
        return CardReading(
            uuid=uuid,
            used_bytes=used,
            processes=processes,
            utilization_pct=None if rates is None else int(rates.gpu),
            memory_utilization_pct=None if rates is None else int(rates.memory),
        )

    def utilization(self, uuid: str, since_us: int, card_since_us: int) -> UtilizationReading:
        """Return what NVML has sampled of a card.

        Args:
            uuid: The card.
            since_us: Samples of processes after this stamp of the driver's clock.
            card_since_us: Samples of the whole card after this one.
        """
        handle = self._handles.get(uuid)
        if handle is None:
            return UtilizationReading(error="the driver does not list the card")
        try:
            busy = newer(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
            if not busy:
                # Its successor, for machines where the older call tells nothing.
                later = newer(
                    lambda: pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, since_us)
                )
                busy = busy if later is None else later
            card = newer(
                lambda: pynvml.nvmlDeviceGetSamples(
                    handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, card_since_us
                )
            )
            stamp, value = newest(card, card_since_us)
            if not busy and stamp is None:
                rates = optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
                value = None if rates is None else int(rates.gpu)
        except pynvml.NVMLError as error:
            return UtilizationReading(error=str(error))
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
            if handle is None:
                sick[uuid] = "the driver does not list the card"
                continue
            try:
                pynvml.nvmlDeviceGetMemoryInfo(handle)
            except pynvml.NVMLError as error:
                sick[uuid] = str(error)
        return sick

    def reopen(self) -> None:
        """Open the driver anew: one that lost a card does not see its reset otherwise."""
        watched = self._events is not None
        uuids = list(self._handles)
        self.close()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            # Every card is silent then; the next attempt may do better.
            self._handles = dict.fromkeys(uuids)
            return
        for uuid in uuids:
            try:
                self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            except pynvml.NVMLError:
                self._handles[uuid] = None
        if watched:
            self.watch_errors()

    def watch_errors(self) -> bool:
        """Let ``errors`` tell XIDs from now on; return whether any card tells them."""
        self._free_events()
        watched = False
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return False
        for handle in self._handles.values():
            try:
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )
                watched = True
            except (pynvml.NVMLError, TypeError):
                continue  # an old card, or one that is lost
        return watched

    def errors(self) -> tuple[tuple[str | None, int], ...]:
        """Return the XIDs that came since the last call, (uuid, XID), without waiting.

        A uuid is None where the driver cannot say which card it was.
        """
        found: list[tuple[str | None, int]] = []
        while self._events is not None and len(found) < _MOST_EVENTS:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:
                break  # none, or the driver is lost, which ``unhealthy`` tells
            if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
                continue
            # By the handle's own value: a lost card does not tell its uuid any more.
            source = bytes(event.device)
            known = (u for u, handle in self._handles.items() if _same(handle, source))
            found.append((next(known, None), int(event.eventData)))
        return tuple(found)

    def recovery_actions(self) -> dict[str, int]:
        """Return what the driver asks to be done with each card, 0 for nothing.

        Without the cards for which it does not tell (drivers before 560).
        """
        found = {}
        for uuid, handle in self._handles.items():
            try:
                (value,) = pynvml.nvmlDeviceGetFieldValues(
                    handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
                )
            except (pynvml.NVMLError, TypeError):
                continue
            if value.nvmlReturn == pynvml.NVML_SUCCESS:
                found[uuid] = int(value.value.uiVal)
        return found

    def _free_events(self) -> None:
        if self._events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
            self._events = None


def _same(handle: Any, source: bytes) -> bool:
    return handle is not None and bytes(handle) == source
