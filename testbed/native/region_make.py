"""A region made, and the limits in one changed while its container runs."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from testbed.errors import InputError
from testbed.native import region_layout as layout
from testbed.native.region_model import Policy, RegionConstant, lock_path
from testbed.native.region_read import checksum, read_region

#: Name of the link beside the region, for processes that cleared their environment.
LINK_NAME = "region"


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
