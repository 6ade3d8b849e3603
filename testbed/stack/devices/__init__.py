"""Vendor devices: which cards a node has, and what a container needs to use one.

``vendor`` says how vendors differ for admission and placement; the rest is read on nodes
only and imported when it is asked for, so that webhook and extender load no driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_PLACES = {
    "CardBook": "emulated",
    "CardReading": "readings",
    "CdiSpec": "cdi",
    "Device": "readings",
    "DriverRoot": "driver_root",
    "Nvml": "nvidia",
    "ProcessBytes": "readings",
    "ProcessSample": "readings",
    "UtilizationReading": "readings",
    "card_book": "emulated",
    "emulated_spec": "cdi",
    "find_driver_root": "driver_root",
    "registered_cards": "nvidia",
    "sync_specs": "cdi",
}

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


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{place}"), name)
