"""Vendor devices: which cards a node has, and what a container needs to use one."""

from testbed.stack.devices.cdi import CdiSpec, emulated_spec, sync_specs
from testbed.stack.devices.driver_root import DriverRoot, find_driver_root
from testbed.stack.devices.emulated import budget_hits
from testbed.stack.devices.nvidia import (
    CardReading,
    Device,
    Nvml,
    ProcessBytes,
    registered_cards,
)

__all__ = [
    "CardReading",
    "CdiSpec",
    "Device",
    "DriverRoot",
    "Nvml",
    "ProcessBytes",
    "budget_hits",
    "emulated_spec",
    "find_driver_root",
    "registered_cards",
    "sync_specs",
]
