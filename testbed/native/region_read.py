"""A region read.

Processes of the container write the variable part and can write anything, so a reader
takes nothing on trust: magic, version, sizes, checksum and counts are checked, and a
process counts only while it holds its lock.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import CodecError
from testbed.native import region_layout as layout
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

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bit


def read_region(path: Path) -> RegionView:
    """Read a region.

    Opens and closes the lock file: never call it in a process that runs under the
    library itself, whose own locks that would drop.

    Raises:
        CodecError: the file is missing, cut, of another version or was changed.
    """
    return _view(path, _bytes_of(path))


def _bytes_of(path: Path) -> bytes:
    """Return a region's bytes.

    Its tenant can put anything in the file's place: opening a pipe must not block us,
    and a mapping of a file that is cut meanwhile would kill us, so it is read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _bad(path, "it is not a file")
            data = os.pread(descriptor, layout.REGION_BYTES, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _bad(path, str(error)) from error
    if len(data) < layout.REGION_BYTES:
        raise _bad(path, "the file is too short")
    return data


def _bad(path: Path, why: str) -> CodecError:
    return CodecError(
        f"{path} is not a readable region",
        why=why,
        hint="delete the pod; the device plugin makes a new region for its successor",
    )


def _view(path: Path, data: bytes) -> RegionView:
    offset = layout.EXT_OFFSET
    constant = parse_constant(path, data[offset : offset + layout.Extension.state_flags.offset])
    count = len(constant.devices)
    denied = layout.PerDevice.from_buffer_copy(data, offset + layout.Extension.denied.offset)
    flags, records = struct.unpack_from("<II", data, offset + layout.Extension.state_flags.offset)
    processes = tuple(_processes(path, data, min(records, layout.MAX_PROCESSES), count))
    used = tuple(sum((process.uses[i] for process in processes), DeviceUse()) for i in range(count))
    return RegionView(
        constant=constant,
        processes=processes,
        denied=tuple(denied[:count]),
        state=StateFlag(flags & (StateFlag.DEGRADED | StateFlag.NO_REGION)),
        used=used,
        compute=_compute_totals(data[offset:], count),
        unexplained_bytes=tuple(
            layout.Ledger.from_buffer_copy(
                data,
                offset + layout.Extension.ledgers.offset + i * ctypes.sizeof(layout.Ledger),
            ).unexplained_bytes
            for i in range(count)
        ),
    )


def _compute_totals(extension: bytes, devices: int) -> tuple[ComputeUse, ...]:
    """Return the container's totals, from the extension's first bytes."""

    def column(name: str) -> list[int]:
        start = getattr(layout.Extension, name).offset
        return list(layout.PerDevice.from_buffer_copy(extension, start))[:devices]

    waited, queue, priority = map(column, ("waited_ns", "waited_queue_ns", "waited_priority_ns"))
    return tuple(
        ComputeUse(
            launches=launches,
            granted_ns=granted,
            waited_budget_ns=max(0, waited[i] - queue[i] - priority[i]),
            waited_queue_ns=queue[i],
            waited_priority_ns=priority[i],
        )
        for i, (launches, granted) in enumerate(
            zip(column("launches"), column("granted_ns"), strict=True)
        )
    )


def parse_constant(path: Path, extension: bytes) -> RegionConstant:
    """Return the constant part of an extension's beginning.

    Args:
        path: For errors.
        extension: At least what lies before ``state_flags``.

    Raises:
        CodecError: it is of another version or was changed.
    """
    magic, version, size, expected = struct.unpack_from("<QIIQ", extension)
    if magic != layout.EXT_MAGIC:
        raise _bad(path, "the extension's magic is missing")
    if version != layout.EXT_VERSION or size != ctypes.sizeof(layout.Extension):
        raise _bad(path, f"extension version {version} of {size} bytes")
    start = layout.Extension.constant.offset
    content = extension[start : start + ctypes.sizeof(layout.Constant)]
    if checksum(content) != expected:
        raise _bad(path, "the checksum of the constant part does not match")
    raw = layout.Constant.from_buffer_copy(content)
    if raw.device_count > layout.MAX_DEVICES:
        raise _bad(path, f"{raw.device_count} devices")
    try:
        return RegionConstant(
            devices=tuple(
                RegionDevice(
                    uuid=raw.uuids[i].value.decode(),
                    memory_limit_bytes=raw.memory_limit[i],
                    sm_limit_pct=raw.sm_limit[i],
                )
                for i in range(raw.device_count)
            ),
            pod_uid=raw.pod_uid.decode(),
            pod_namespace=raw.pod_namespace.decode(),
            pod_name=raw.pod_name.decode(),
            container_name=raw.container_name.decode(),
            policy=Policy(raw.policy),
            priority=raw.priority,
            oversubscribe=bool(raw.oversubscribe),
            priority_floor_pct=raw.priority_floor_pct,
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise _bad(path, str(error)) from error


def _processes(path: Path, data: bytes, records: int, devices: int) -> Iterator[ProcessView]:
    start = layout.EXT_OFFSET + layout.Extension.records.offset
    size = ctypes.sizeof(layout.ProcessRecord)
    with _lock_file(path) as lock:
        for i in range(records):
            record = layout.ProcessRecord.from_buffer_copy(data, start + i * size)
            owner = _owner(lock, i)
            if not record.generation & 1 or owner is None:
                continue
            yield ProcessView(
                record=i,
                pid=record.pid,
                owner_pid=owner,
                started_ns=record.started_ns,
                active_ns=record.active_ns,
                uses=tuple(
                    DeviceUse(
                        context_bytes=use.context_bytes,
                        module_bytes=use.module_bytes,
                        buffer_bytes=use.buffer_bytes,
                    )
                    for use in record.use[:devices]
                ),
                compute=tuple(
                    ComputeUse(
                        launches=use.launches,
                        granted_ns=use.granted_ns,
                        waited_budget_ns=use.waited_budget_ns,
                        waited_queue_ns=use.waited_queue_ns,
                        waited_priority_ns=use.waited_priority_ns,
                    )
                    for use in record.use[:devices]
                ),
                last_error=record.last_error,
            )


@contextmanager
def _lock_file(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of the lock file, or None: without the file nobody holds a lock."""
    try:
        descriptor = os.open(
            lock_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _owner(lock: int | None, record: int) -> int | None:
    """Return the pid of a record's owner in our namespace, or None where nobody lives."""
    if lock is None:
        return None
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, record, 1, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_GETLK, request))
    return None if answer[0] == fcntl.F_UNLCK else int(answer[4])


def checksum(data: bytes) -> int:
    """Return FNV-1a, 64 bit, of the constant part."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
