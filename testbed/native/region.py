"""The shared region of one container: the plugin makes it, the monitor reads it.

The layout is ``include/region.h``. ``region_model`` has what a region says,
``region_make`` makes and changes one, ``region_read`` takes nothing on trust.
"""

from __future__ import annotations

from testbed.native.region_make import LINK_NAME, make_region, set_compute, set_memory
from testbed.native.region_model import (
    ComputeUse,
    DeviceUse,
    Policy,
    ProcessView,
    RegionConstant,
    RegionDevice,
    RegionView,
    StateFlag,
    lock_path,
)
from testbed.native.region_read import checksum, parse_constant, read_region

__all__ = [
    "LINK_NAME",
    "ComputeUse",
    "DeviceUse",
    "Policy",
    "ProcessView",
    "RegionConstant",
    "RegionDevice",
    "RegionView",
    "StateFlag",
    "checksum",
    "lock_path",
    "make_region",
    "parse_constant",
    "read_region",
    "set_compute",
    "set_memory",
]
