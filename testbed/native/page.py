"""The page of one card: the plugin makes it, the library of every container writes to it.

The layout is ``include/page.h``. All containers of a card can write anything into it, so
a reader checks magic, version, size and counts, and believes no more than it must.
"""

from __future__ import annotations

import ctypes
import os
import stat
from ctypes import c_char, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import CodecError, InputError

MAGIC = 0x4547415055504756  # "VGPUPAGE", little endian
VERSION = 1
TENANTS = 128
STALE_NS = 10_000_000_000
UUID_BYTES = 96


class Tenant(ctypes.Structure):
    """``struct vgpu_page_tenant``."""

    _fields_ = (
        ("id", c_uint64),
        ("active_ns", c_uint64),
        ("busy_until_ns", c_uint64),
        ("granted_ns", c_uint64),
        ("priority", c_uint32),
        ("limit_pct", c_uint32),
        ("wanting_ns", c_uint64),
        ("flight_ns", c_uint64),
        ("turn", c_uint64),
    )


class Page(ctypes.Structure):
    """``struct vgpu_page``."""

    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("bytes", c_uint32),
        ("uuid", c_char * UUID_BYTES),
        ("tenant_count", c_uint32),
        ("spare32", c_uint32),
        ("spare", c_uint64 * 497),
        ("tenants", Tenant * TENANTS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """One container on a card, as it tells itself.

    Attributes:
        id: ``tenant_id`` of its pod and container.
        active_ns: CLOCK_MONOTONIC of a launch within the last milliseconds.
        busy_until_ns: When its work in flight will be done, as it estimates.
        granted_ns: Device time so far, by the library's own reckoning.
        priority: 0 is high, larger is lower.
        limit_pct: Share of the device, 0 = no limit.
        wanting_ns: CLOCK_MONOTONIC of a launch that yields to a higher priority.
        turn_ns: CLOCK_MONOTONIC of the end of its turn on the card, running or last; 0 where
            it takes no turns.
        waits: It waits for a turn.
    """

    id: int
    active_ns: int
    busy_until_ns: int
    granted_ns: int
    priority: int
    limit_pct: int
    wanting_ns: int = 0
    turn_ns: int = 0
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """A card page at one moment; entries that were never claimed are left out."""

    uuid: str
    tenants: tuple[TenantView, ...]


def tenant_id(pod_uid: str, container: str) -> int:
    """Return a container's id on the page: FNV-1a, 64 bit, of ``<pod uid>/<container>``."""
    value = 0xCBF29CE484222325
    for byte in f"{pod_uid}/{container}".encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value or 1


def make_page(path: Path, uuid: str) -> None:
    """Make the page of a card, mode 0666; one that is valid for this card is kept.

    A page that is not valid is replaced: containers that have the old one mapped keep
    it, and are unseen by later ones until they end.

    Raises:
        InputError: the uuid does not fit, or the file cannot be made.
    """
    if not 0 < len(uuid.encode()) < UUID_BYTES:
        raise InputError("the card page cannot be made", why=f"uuid {uuid!r} is no uuid")
    try:
        if read_page(path).uuid == uuid:
            path.chmod(0o666)
            return
    except (CodecError, OSError):
        pass
    page = Page(version=VERSION, bytes=ctypes.sizeof(Page), uuid=uuid.encode(), magic=MAGIC)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(bytes(page))
            temporary.chmod(0o666)  # whatever the umask: every user of every container writes
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"the card page {path} cannot be made",
            why=str(error),
            hint="the folder below the hook path must be writable by the plugin",
        ) from error


def read_page(path: Path) -> PageView:
    """Read a card's page.

    Raises:
        CodecError: the file is missing, cut, of another version or no file.
    """
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
        descriptor = os.open(path, flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _bad(path, "it is not a file")
            # Read, never mapped: a tenant may cut the file, which would kill us.
            data = os.pread(descriptor, ctypes.sizeof(Page), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _bad(path, str(error)) from error
    if len(data) < ctypes.sizeof(Page):
        raise _bad(path, "the file is too short")
    page = Page.from_buffer_copy(data)
    if page.magic != MAGIC:
        raise _bad(path, "the magic is missing")
    if page.version != VERSION or page.bytes != ctypes.sizeof(Page):
        raise _bad(path, f"version {page.version} of {page.bytes} bytes")
    try:
        uuid = bytes(page.uuid).decode()
    except UnicodeDecodeError as error:
        raise _bad(path, str(error)) from error
    return PageView(
        uuid=uuid,
        tenants=tuple(
            TenantView(
                id=tenant.id,
                active_ns=tenant.active_ns,
                busy_until_ns=tenant.busy_until_ns,
                granted_ns=tenant.granted_ns,
                priority=tenant.priority,
                limit_pct=tenant.limit_pct,
                wanting_ns=tenant.wanting_ns,
                turn_ns=tenant.turn & ~1,
                waits=bool(tenant.turn & 1),
            )
            for tenant in page.tenants[: min(page.tenant_count, TENANTS)]
            if tenant.id
        ),
    )


def _bad(path: Path, why: str) -> CodecError:
    return CodecError(
        f"{path} is not a readable card page",
        why=why,
        hint="restart the device plugin: it makes a new page where one is not valid",
    )
