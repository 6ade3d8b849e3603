"""The monitor's side of a region: counters read often, feedback and HAMi's fields written.

A region's tenant can replace, cut or link the file at any moment. So it is opened
without following a link, looked at through its descriptor, read and written by offset
(a mapping of a file that is cut would kill us), and nothing beyond its size is written.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import CodecError
from testbed.native import region_layout as layout
from testbed.native.region import RegionConstant, StateFlag, parse_constant

#: The extension up to the records: constant part, flags and counters, feedback.
_HEAD_BYTES = layout.Extension.records.offset
_CONSTANT_END = layout.Extension.state_flags.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What NVML says of one device in one sample's interval (``struct vgpu_feedback``).

    Attributes:
        stamp_ns: CLOCK_MONOTONIC, end of the interval.
        interval_ns: Its length.
        own_util_pm: This container's use of the device, per mille.
        other_util_pm: Everybody else's.
        own_bytes: What the card counts for this container.
        other_bytes: For everybody else.
    """

    stamp_ns: int
    interval_ns: int
    own_util_pm: int
    other_util_pm: int
    own_bytes: int
    other_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A region's fields that its processes count in, at one moment; one entry a device.

    Attributes:
        denied: Allocations that the limit refused.
        launches: Kernels, graphs, large copies and fills.
        granted_ns: Device time by the library's own reckoning.
        waited_ns: Time for which launches were held back, summed over launches: two
            threads that wait a second have waited two.
        waited_queue_ns: Of it, since enough device time was in flight already.
        waited_priority_ns: Of it, since a pod of higher priority had work.
    """

    constant: RegionConstant
    state: StateFlag
    denied: tuple[int, ...]
    launches: tuple[int, ...]
    granted_ns: tuple[int, ...]
    waited_ns: tuple[int, ...]
    waited_queue_ns: tuple[int, ...]
    waited_priority_ns: tuple[int, ...]


class RegionWatch:
    """One container's region, by its path; nothing is kept open between looks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head = b""
        self._constant: RegionConstant | None = None

    def counters(self) -> Counters:
        """Return the present counters.

        Raises:
            CodecError: there is no region that validates.
        """
        with self._opened(os.O_RDONLY) as file:
            head = os.pread(file, _HEAD_BYTES, layout.EXT_OFFSET)
        constant = self._validated(head)
        count = len(constant.devices)
        flags = struct.unpack_from("<I", head, layout.Extension.state_flags.offset)[0]

        def each(offset: int) -> tuple[int, ...]:
            return tuple(layout.PerDevice.from_buffer_copy(head, offset)[:count])

        return Counters(
            constant=constant,
            state=StateFlag(flags & (StateFlag.DEGRADED | StateFlag.NO_REGION)),
            denied=each(layout.Extension.denied.offset),
            launches=each(layout.Extension.launches.offset),
            granted_ns=each(layout.Extension.granted_ns.offset),
            waited_ns=each(layout.Extension.waited_ns.offset),
            waited_queue_ns=each(layout.Extension.waited_queue_ns.offset),
            waited_priority_ns=each(layout.Extension.waited_priority_ns.offset),
        )

    def feed(self, device: int, given: Feedback) -> None:
        """Write one device's feedback; a reader sees all of it or that it is unfinished.

        Raises:
            CodecError: the file is no region any more.
        """
        if not 0 <= device < layout.MAX_DEVICES:
            raise ValueError(f"device {device}")
        inside = layout.Extension.feedback.offset + device * ctypes.sizeof(layout.Feedback)
        offset = layout.EXT_OFFSET + inside
        entry = layout.Feedback(
            own_util_pm=given.own_util_pm,
            other_util_pm=given.other_util_pm,
            own_bytes=given.own_bytes,
            other_bytes=given.other_bytes,
            interval_ns=given.interval_ns,
        )
        with self._opened(os.O_RDWR) as file:
            # Its stamp is 0: unfinished. That of the bytes is not this function's.
            os.pwrite(file, bytes(entry)[: layout.Feedback.bytes_ns.offset], offset)
            os.pwrite(file, struct.pack("<Q", given.stamp_ns), offset)

    def feed_bytes(self, device: int, *, own: int, other: int, stamp_ns: int) -> None:
        """Write what the card counts for this container and for all others.

        The library learns of it what the driver takes beside what it counts itself, so
        every reading is written once, and right after it was taken.

        Args:
            device: Its number in the container.
            own: Bytes of the container's processes.
            other: Bytes of everybody else.
            stamp_ns: CLOCK_MONOTONIC of the reading; another than the last one's.

        Raises:
            CodecError: the file is no region any more.
        """
        if not 0 <= device < layout.MAX_DEVICES:
            raise ValueError(f"device {device}")
        inside = layout.Extension.feedback.offset + device * ctypes.sizeof(layout.Feedback)
        offset = layout.EXT_OFFSET + inside
        with self._opened(os.O_RDWR) as file:
            values = struct.pack("<QQ", own, other)
            os.pwrite(file, values, offset + layout.Feedback.own_bytes.offset)
            stamp = struct.pack("<Q", stamp_ns)
            os.pwrite(file, stamp, offset + layout.Feedback.bytes_ns.offset)

    def mirror(self, *, utilization_switch: int, recent_kernel: int) -> None:
        """Write the two fields that HAMi's monitor writes.

        Raises:
            CodecError: the file is no region any more.
        """
        with self._opened(os.O_RDWR) as file:
            os.pwrite(
                file,
                struct.pack("<ii", utilization_switch, recent_kernel),
                layout.HamiRegion.utilization_switch.offset,
            )

    def _validated(self, head: bytes) -> RegionConstant:
        # The checksum is dear in Python, and the constant part never changes by rights.
        if self._constant is None or head[:_CONSTANT_END] != self._head:
            self._constant = None
            self._constant = parse_constant(self._path, head)
            self._head = head[:_CONSTANT_END]
        return self._constant

    @contextmanager
    def _opened(self, access: int) -> Iterator[int]:
        flags = access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            file = os.open(self._path, flags)
            try:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode):
                    raise CodecError(f"{self._path} is not a region", why="it is not a file")
                if about.st_size < layout.REGION_BYTES:
                    raise CodecError(f"{self._path} is not a region", why="it is too short")
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise CodecError(f"{self._path} cannot be used", why=str(error)) from error
