"""The shared region of one container: the plugin makes it, the monitor reads it.

The layout is ``include/region.h``. Processes of the container write the variable part
and can write anything, so a reader takes nothing on trust: magic, version, sizes,
checksum and counts are checked, and a process counts only while it holds its lock.
"""

from __future__ import annotations

import ctypes
import enum
import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from testbed.errors import CodecError, InputError
from testbed.native import region_layout as layout

#: Name of the link beside the region, for processes that cleared their environment.
LINK_NAME = "region"

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bit


class Policy(enum.IntEnum):
    """When a compute limit is enforced (GPU_CORE_UTILIZATION_POLICY)."""

    DEFAULT = 0
    FORCE = 1
    DISABLE = 2


class StateFlag(enum.IntFlag):
    """What the container's processes report about themselves."""

    DEGRADED = 1
    NO_REGION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """A device of the container; its place in the tuple is its limit's number.

    Attributes:
        uuid: ``GPU-…``, as NVML and the driver tell it.
        memory_limit_bytes: 0 = none.
        sm_limit_pct: 0 or 100 = none.
    """

    uuid: str
    memory_limit_bytes: int
    sm_limit_pct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionConstant:
    """What the plugin decides before the container starts."""

    devices: tuple[RegionDevice, ...]
    pod_uid: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    container_name: str = ""
    policy: Policy = Policy.DEFAULT
    priority: int = 1
    oversubscribe: bool = False
    priority_floor_pct: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeUse:
    """Compute of one device, as the library counts it; running totals.

    Attributes:
        launches: Kernels, graphs, large copies and fills.
        granted_ns: Device time by the library's own reckoning.
        waited_budget_ns: Launches held back because the share was used up. Waits sum over
            launches: sixteen threads that wait a second have waited sixteen.
        waited_queue_ns: Because enough device time was in flight already.
        waited_priority_ns: Because a pod of higher priority had work.
    """

    launches: int = 0
    granted_ns: int = 0
    waited_budget_ns: int = 0
    waited_queue_ns: int = 0
    waited_priority_ns: int = 0

    @property
    def waited_ns(self) -> int:
        return self.waited_budget_ns + self.waited_queue_ns + self.waited_priority_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Bytes of one device, as the library counts them."""

    context_bytes: int = 0
    module_bytes: int = 0
    buffer_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.context_bytes + self.module_bytes + self.buffer_bytes

    def __add__(self, other: DeviceUse) -> DeviceUse:
        return DeviceUse(
            context_bytes=self.context_bytes + other.context_bytes,
            module_bytes=self.module_bytes + other.module_bytes,
            buffer_bytes=self.buffer_bytes + other.buffer_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A living process of the container.

    Attributes:
        record: Number of its record, which is its lock byte and HAMi's slot.
        pid: In the container's PID namespace, as the process itself wrote it.
        owner_pid: In the reader's namespace, as the kernel tells the lock's owner
            (0 where the owner is in no namespace below the reader's).
        uses: One entry a device, in the order of the constant part.
        compute: Likewise, of this process.
        last_error: CUresult of the newest launch that failed, 0 = none.
        active_ns: CLOCK_MONOTONIC of a recent launch, 0 before the first.
    """

    record: int
    pid: int
    owner_pid: int
    started_ns: int
    uses: tuple[DeviceUse, ...]
    compute: tuple[ComputeUse, ...] = ()
    last_error: int = 0
    active_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """A region at one moment; one entry a device.

    Attributes:
        compute: Totals of all processes, living or dead.
        unexplained_bytes: What the card counts for the container beyond ``used``; counts
            against the limit too.
    """

    constant: RegionConstant
    processes: tuple[ProcessView, ...]
    denied: tuple[int, ...]
    state: StateFlag
    used: tuple[DeviceUse, ...] = field(default=())
    compute: tuple[ComputeUse, ...] = field(default=())
    unexplained_bytes: tuple[int, ...] = field(default=())


def lock_path(region: Path) -> Path:
    """Return the lock file that belongs to a region."""
    return region.with_name(region.name + ".lock")


# --- making --------------------------------------------------------------------


def make_region(folder: Path, cache_uuid: str, constant: RegionConstant) -> Path:
    """Make ``<cache_uuid>.cache``, its lock file and the link ``region`` in a folder.

    The file appears complete or not at all. One that exists is replaced: processes
    that mapped the old one keep it (and their limits).

    Raises:
        InputError: a value does not fit the layout.
    """
    _check(constant)
    path = folder / f"{cache_uuid}.cache"
    temporary = folder / f".{cache_uuid}.cache.new"
    lock = lock_path(path)
    lock.touch(mode=0o666)
    lock.chmod(0o666)  # whatever the umask: every user of the container locks here
    try:
        with temporary.open("wb") as file:
            file.truncate(layout.REGION_BYTES)
            for offset, content in _content(constant):
                os.pwrite(file.fileno(), content, offset)
        temporary.chmod(0o666)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _link(folder / LINK_NAME, path.name)
    return path


def set_compute(
    path: Path,
    *,
    sm_limit_pct: Mapping[int, int] | None = None,
    policy: Policy | None = None,
    priority: int | None = None,
    priority_floor_pct: int | None = None,
) -> RegionConstant:
    """Change compute limits of a container that runs; what is not named stays.

    Its processes see the change at their next launch, within about a hundredth of a
    second: they take the constant part when its checksum, which is written last, changes
    and is right.

    Args:
        path: The region.
        sm_limit_pct: By device number; 0 or 100 = none.
        policy: When the limit is enforced.
        priority: 0 is high, 1 is low.
        priority_floor_pct: Share that a low priority keeps beside a high one.

    Raises:
        CodecError: the region is not valid.
        InputError: a value does not fit.
    """
    before = read_region(path).constant
    devices = list(before.devices)
    for number, percent in (sm_limit_pct or {}).items():
        _check_number(before, number)
        devices[number] = replace(devices[number], sm_limit_pct=percent)
    return _change(
        path,
        replace(
            before,
            devices=tuple(devices),
            policy=before.policy if policy is None else policy,
            priority=before.priority if priority is None else priority,
            priority_floor_pct=(
                before.priority_floor_pct if priority_floor_pct is None else priority_floor_pct
            ),
        ),
    )


def set_memory(path: Path, memory_limit_bytes: Mapping[int, int]) -> RegionConstant:
    """Change memory limits of a container that runs, by device number; 0 = none.

    Its processes see the change at their next allocation. A limit below what they hold
    takes nothing from them: they get no more until they have freed enough.

    Raises:
        CodecError: the region is not valid.
        InputError: a value does not fit.
    """
    before = read_region(path).constant
    devices = list(before.devices)
    for number, limit in memory_limit_bytes.items():
        _check_number(before, number)
        devices[number] = replace(devices[number], memory_limit_bytes=limit)
    return _change(path, replace(before, devices=tuple(devices)))


def _check_number(constant: RegionConstant, number: int) -> None:
    if not 0 <= number < len(constant.devices):
        raise InputError("the limit cannot be set", why=f"there is no device {number}")


def _change(path: Path, after: RegionConstant) -> RegionConstant:
    _check(after)
    start = layout.Extension.constant.offset
    content = bytes(_inner(after))
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # HAMi's copy first, for its tools; the checksum last.
        for number, device in enumerate(after.devices):
            for name, value in (
                ("sm_limit", device.sm_limit_pct),
                ("memory_limit", device.memory_limit_bytes),
            ):
                offset = getattr(layout.HamiRegion, name).offset + 8 * number
                os.pwrite(descriptor, struct.pack("<Q", value), offset)
        os.pwrite(descriptor, struct.pack("<i", after.priority), layout.HamiRegion.priority.offset)
        os.pwrite(descriptor, content, layout.EXT_OFFSET + start)
        os.pwrite(
            descriptor,
            struct.pack("<Q", checksum(content)),
            layout.EXT_OFFSET + layout.Extension.checksum.offset,
        )
    finally:
        os.close(descriptor)
    return after


def _check(constant: RegionConstant) -> None:
    if not 0 < len(constant.devices) <= layout.MAX_DEVICES:
        raise InputError(
            "the region cannot be made",
            why=f"{len(constant.devices)} devices, and it holds 1 to {layout.MAX_DEVICES}",
            hint=f"ask for at most {layout.MAX_DEVICES} devices for one container",
        )
    for device in constant.devices:
        if not 0 < len(device.uuid.encode()) < layout.UUID_BYTES:
            raise InputError("the region cannot be made", why=f"uuid {device.uuid!r} is no uuid")
        for name in ("memory_limit_bytes", "sm_limit_pct"):
            if not 0 <= getattr(device, name) < 1 << 63:
                raise InputError(
                    "the region cannot be made", why=f"{name} is {getattr(device, name)}"
                )


def _content(constant: RegionConstant) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of the file; each magic comes after what it vouches for."""
    count = len(constant.devices)
    hami = layout.HamiRegion()
    hami.major, hami.minor = layout.HAMI_MAJOR, layout.HAMI_MINOR
    hami.device_count = count
    hami.priority = constant.priority
    for i, device in enumerate(constant.devices):
        hami.uuids[i].value = device.uuid.encode()
        hami.memory_limit[i] = device.memory_limit_bytes
        hami.sm_limit[i] = device.sm_limit_pct
    extension = layout.Extension()
    extension.version = layout.EXT_VERSION
    extension.bytes = ctypes.sizeof(layout.Extension)
    extension.constant = _inner(constant)
    extension.checksum = checksum(bytes(extension.constant))
    # Only what is not zero: the file stays sparse.
    head = layout.HamiRegion.slots.offset
    yield 0, bytes(hami)[:head]
    tail = layout.HamiRegion.slot_count.offset
    yield tail, bytes(hami)[tail:]
    yield layout.EXT_OFFSET, bytes(extension)[: layout.Extension.records.offset]
    yield 0, struct.pack("<i", layout.HAMI_MAGIC)
    yield layout.EXT_OFFSET, struct.pack("<Q", layout.EXT_MAGIC)


def _inner(constant: RegionConstant) -> layout.Constant:
    inner = layout.Constant()
    inner.device_count = len(constant.devices)
    inner.policy = constant.policy
    inner.priority = constant.priority
    inner.oversubscribe = int(constant.oversubscribe)
    inner.priority_floor_pct = constant.priority_floor_pct
    inner.pod_uid = _text(constant.pod_uid, 64)
    inner.pod_namespace = _text(constant.pod_namespace, 64)
    inner.pod_name = _text(constant.pod_name, 256)
    inner.container_name = _text(constant.container_name, 64)
    for i, device in enumerate(constant.devices):
        inner.uuids[i].value = device.uuid.encode()
        inner.memory_limit[i] = device.memory_limit_bytes
        inner.sm_limit[i] = device.sm_limit_pct
    return inner


def _text(value: str, size: int) -> bytes:
    encoded = value.encode()
    if len(encoded) >= size:
        raise InputError(
            "the region cannot be made", why=f"{value!r} is longer than {size - 1} bytes"
        )
    return encoded


def _link(link: Path, target: str) -> None:
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def checksum(data: bytes) -> int:
    """Return FNV-1a, 64 bit, of the constant part."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


# --- reading -------------------------------------------------------------------


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
        compute=compute_totals(data[offset:], count),
        unexplained_bytes=tuple(
            layout.Ledger.from_buffer_copy(
                data,
                offset + layout.Extension.ledgers.offset + i * ctypes.sizeof(layout.Ledger),
            ).unexplained_bytes
            for i in range(count)
        ),
    )


def compute_totals(extension: bytes, devices: int) -> tuple[ComputeUse, ...]:
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
