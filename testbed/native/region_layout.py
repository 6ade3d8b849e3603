"""The layout of the shared region as ctypes structures: a mirror of ``include/region.h``.

Nothing but layout here; a test compares every field with the C compiler's offsets.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_ubyte, c_uint32, c_uint64

MAX_DEVICES = 16
MAX_PROCESSES = 1024
UUID_BYTES = 96

HAMI_MAGIC = 19920718
HAMI_MAJOR = 1
HAMI_MINOR = 2
HAMI_BYTES = 2008952

EXT_OFFSET = 2011136
EXT_MAGIC = 0x3154584555504756  # "VGPUEXT1", little endian
EXT_VERSION = 2
LOCK_ACCOUNT = 4096
HISTORY = 256
HISTORY_TICK_NS = 10_000_000

Uuids = (c_char * UUID_BYTES) * MAX_DEVICES
PerDevice = c_uint64 * MAX_DEVICES


class HamiDeviceMemory(ctypes.Structure):
    _fields_ = (
        ("context_bytes", c_uint64),
        ("module_bytes", c_uint64),
        ("buffer_bytes", c_uint64),
        ("offset", c_uint64),
        ("total_bytes", c_uint64),
        ("spare", c_uint64 * 3),
    )


class HamiDeviceUtil(ctypes.Structure):
    _fields_ = (
        ("decoder", c_uint64),
        ("encoder", c_uint64),
        ("sm", c_uint64),
        ("spare", c_uint64 * 3),
    )


class HamiProcessSlot(ctypes.Structure):
    _fields_ = (
        ("pid", c_int32),
        ("host_pid", c_int32),
        ("used", HamiDeviceMemory * MAX_DEVICES),
        ("monitor_used", PerDevice),
        ("util", HamiDeviceUtil * MAX_DEVICES),
        ("status", c_int32),
        ("pad", c_uint32),
        ("sequence", c_uint64),
        ("spare", c_uint64 * 2),
    )


class HamiRegion(ctypes.Structure):
    _fields_ = (
        ("magic", c_int32),
        ("major", c_uint32),
        ("minor", c_uint32),
        ("sm_init", c_int32),
        ("semaphore_owner", c_uint64),
        ("semaphore", c_ubyte * 32),
        ("device_count", c_uint64),
        ("uuids", Uuids),
        ("memory_limit", PerDevice),
        ("sm_limit", PerDevice),
        ("slots", HamiProcessSlot * MAX_PROCESSES),
        ("slot_count", c_int32),
        ("utilization_switch", c_int32),
        ("recent_kernel", c_int32),
        ("priority", c_int32),
        ("last_kernel_time", c_uint64),
        ("semaphore_post_init", c_ubyte * 32),
    )


class DeviceUse(ctypes.Structure):
    _fields_ = (
        ("context_bytes", c_uint64),
        ("module_bytes", c_uint64),
        ("buffer_bytes", c_uint64),
        ("launches", c_uint64),
        ("granted_ns", c_uint64),
        ("waited_budget_ns", c_uint64),
        ("waited_queue_ns", c_uint64),
        ("waited_priority_ns", c_uint64),
    )


class ProcessRecord(ctypes.Structure):
    _fields_ = (
        ("generation", c_uint64),
        ("pid", c_int32),
        ("flags", c_uint32),
        ("started_ns", c_uint64),
        ("active_ns", c_uint64),
        ("active_devices", c_uint32),
        ("last_error", c_int32),
        ("spare", c_uint64 * 3),
        ("use", DeviceUse * MAX_DEVICES),
    )


class Feedback(ctypes.Structure):
    _fields_ = (
        ("stamp_ns", c_uint64),
        ("own_util_pm", c_uint32),
        ("other_util_pm", c_uint32),
        ("own_bytes", c_uint64),
        ("other_bytes", c_uint64),
        ("interval_ns", c_uint64),
        ("bytes_ns", c_uint64),
        ("spare", c_uint64 * 2),
    )


class Constant(ctypes.Structure):
    _fields_ = (
        ("device_count", c_uint32),
        ("policy", c_uint32),
        ("priority", c_uint32),
        ("oversubscribe", c_uint32),
        ("pod_uid", c_char * 64),
        ("pod_namespace", c_char * 64),
        ("pod_name", c_char * 256),
        ("container_name", c_char * 64),
        ("uuids", Uuids),
        ("memory_limit", PerDevice),
        ("sm_limit", PerDevice),
        ("priority_floor_pct", c_uint32),
        ("spare32", c_uint32),
        ("spare", c_uint64 * 31),
    )


class History(ctypes.Structure):
    _fields_ = (
        ("tick", c_uint64),
        ("booked_ns", c_int64 * 2),
        ("charged_ns", c_int64),
        ("weak_ns", c_int64),
    )


class Ledger(ctypes.Structure):
    _fields_ = (
        ("booked_ns", c_int64 * 2),
        ("charged_ns", c_int64),
        ("weak_ns", c_int64),
        ("tick", c_uint64),
        ("sample_ns", c_uint64),
        ("other_ns", c_uint64),
        ("samples_alone", c_uint64),
        ("samples_beside", c_uint64),
        ("contended", c_uint64),
        ("kappa_ppm", c_uint64 * 2),
        ("gain_ppm", c_uint64),
        ("kappa_used_ns", c_int64),
        ("kappa_booked_ns", c_int64 * 2),
        ("gain_used_ns", c_int64),
        ("gain_booked_ns", c_int64),
        ("residual_ns", c_int64),
        ("suspense_ns", c_int64),
        ("limit_ppm", c_uint64),
        ("unexplained_bytes", c_uint64),
        ("reading_ns", c_uint64),
        ("highest_bytes", c_uint64 * 3),
        ("lowest_bytes", c_uint64 * 3),
        ("all_measured_ns", c_uint64),
        ("spare", c_uint64 * 2),
        ("history", History * HISTORY),
    )


class Extension(ctypes.Structure):
    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("bytes", c_uint32),
        ("checksum", c_uint64),
        ("constant", Constant),
        ("state_flags", c_uint32),
        ("record_count", c_uint32),
        ("paid_until_ns", PerDevice),
        ("denied", PerDevice),
        ("waited_ns", PerDevice),
        ("launches", PerDevice),
        ("granted_ns", PerDevice),
        ("waited_queue_ns", PerDevice),
        ("waited_priority_ns", PerDevice),
        ("feedback", Feedback * MAX_DEVICES),
        ("records", ProcessRecord * MAX_PROCESSES),
        ("ledgers", Ledger * MAX_DEVICES),
    )


REGION_BYTES = EXT_OFFSET + ctypes.sizeof(Extension)
