"""Vendor devices: which cards a node has, and what a container needs to use one."""

from testbed.stack.devices.cdi import CdiSpec, emulated_spec, sync_specs
from testbed.stack.devices.driver_root import DriverRoot, find_driver_root
from testbed.stack.devices.emulated import CardBook, card_book
from testbed.stack.devices.nvidia import Nvml, registered_cards
from testbed.stack.devices.readings import (
    CardReading,
    Device,
    ProcessBytes,
    ProcessSample,
    UtilizationReading,
)

__all__ = [
    "CardBook",
    "CardReading",
    "CdiSpec",
    "Device",
    "DriverRoot",
    "Nvml",
    "ProcessBytes",
    "ProcessSample",
    "UtilizationReading",
    "card_book",
    "emulated_spec",
    "find_driver_root",
    "registered_cards",
    "sync_specs",
]
