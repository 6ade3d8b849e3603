"""The state of an emulated card: mirror of ``include/card.h``, its maker and reader."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from testbed.errors import CodecError

MAGIC = 0x3144524143555056
VERSION = 2
MAX_SLOTS = 256
RING = 1024
BUCKETS = 256
#: Byte of ``cuda.lock`` that is held while memory is charged.
LOCK_MEMORY = 4096
#: What the card counts in, and what a context's cost must be a multiple of.
GRANULE_BYTES = 2 << 20
#: Of a slot's word of memory: 20 bits of the generation, then used, then credit.
_MEMORY_BITS = 22
_MEMORY_MASK = (1 << _MEMORY_BITS) - 1

_U32 = ctypes.c_uint32
_U64 = ctypes.c_uint64


class DescriptionLayout(ctypes.Structure):
    """``struct card_description``."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("pci_bus_id", ctypes.c_char * 32),
        ("index", _U32),
        ("minor", _U32),
        ("memory_bytes", _U64),
        ("reserved_bytes", _U64),
        ("context_bytes", _U64),
        ("compute_major", _U32),
        ("compute_minor", _U32),
        ("sm_count", _U32),
        ("max_threads_per_sm", _U32),
        ("max_blocks_per_sm", _U32),
        ("shared_per_sm_bytes", _U32),
        ("shared_per_block_bytes", _U32),
        ("shared_per_block_optin_bytes", _U32),
        ("registers_per_sm", _U32),
        ("l2_bytes", _U32),
        ("clock_khz", _U32),
        ("memory_clock_khz", _U32),
        ("memory_bus_bits", _U32),
        ("numa", _U32),
        ("copy_engines", _U32),
        ("time_slice_us", _U32),
        ("clock_mode", _U32),
        ("sample_period_us", _U32),
        ("launch_overhead_ns", _U32),
        ("memory_bandwidth_bps", _U64),
        ("copy_bandwidth_bps", _U64),
        ("fp32_flops", _U64),
        ("tf32_flops", _U64),
        ("fp16_flops", _U64),
        ("fp64_flops", _U64),
        ("budget_bytes", _U64),
        ("driver_version", _U32),
        ("spare32", _U32),
        ("driver_text", ctypes.c_char * 32),
        ("spare", _U64 * 28),
    )


class SlotLayout(ctypes.Structure):
    """``struct card_slot``."""

    _fields_ = (
        ("generation", _U64),
        ("pid", ctypes.c_int32),
        ("flags", _U32),
        ("started_ns", _U64),
        ("context_bytes", _U64),
        ("memory", _U64),
        ("resident_bytes", _U64),
        ("busy_until", _U64),
        ("busy_ns", _U64),
        ("launches", _U64),
        ("copied_bytes", _U64),
        ("name", ctypes.c_char * 32),
        ("swapped_bytes", _U64),
        ("spare", _U64 * 17),
    )


class BreakpointLayout(ctypes.Structure):
    """``struct card_breakpoint``."""

    _fields_ = (
        ("sequence", _U64),
        ("time_ns", _U64),
        ("virtual_ns", _U64),
        ("active", _U32),
        ("slot", _U32),
    )


class BucketLayout(ctypes.Structure):
    """``struct card_bucket``."""

    _fields_ = (("number", _U64), ("busy_ns", _U64))


class FaultsLayout(ctypes.Structure):
    """``struct card_faults``."""

    _fields_ = (
        ("xid", _U32),
        ("fallen_off", _U32),
        ("xid_count", _U64),
        ("spare", _U64 * 14),
    )


class StateLayout(ctypes.Structure):
    """``struct card_state``."""

    _fields_ = (
        ("magic", _U64),
        ("version", _U32),
        ("bytes", _U32),
        ("made_ns", _U64),
        ("spare0", _U64 * 5),
        ("description", DescriptionLayout),
        ("slot_count", _U64),
        ("budget_hits", _U64),
        ("reclaimed", _U64),
        ("spare1", _U64 * 5),
        ("clock_time_ns", _U64),
        ("clock_virtual_and_generation", _U64),
        ("breakpoints_written", _U64),
        ("breakpoints_lapped", _U64),
        ("faults", FaultsLayout),
        ("buckets", BucketLayout * BUCKETS),
        ("ring", BreakpointLayout * RING),
        ("slots", SlotLayout * MAX_SLOTS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDescription:
    """What never changes about a card. Names and units are those of ``card.h``."""

    uuid: str
    name: str
    pci_bus_id: str
    index: int
    minor: int
    memory_bytes: int
    reserved_bytes: int
    context_bytes: int
    compute_major: int
    compute_minor: int
    sm_count: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_per_sm_bytes: int
    shared_per_block_bytes: int
    shared_per_block_optin_bytes: int
    registers_per_sm: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    numa: int = 0
    copy_engines: int
    time_slice_us: int = 2000
    clock_mode: int = 0
    sample_period_us: int
    launch_overhead_ns: int
    memory_bandwidth_bps: int
    copy_bandwidth_bps: int
    fp32_flops: int
    tf32_flops: int
    fp16_flops: int
    fp64_flops: int
    budget_bytes: int = 0
    driver_version: int
    driver_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSlot:
    """A process's slot that is in use; whether its owner lives, only its lock says."""

    index: int
    pid: int
    name: str
    context_bytes: int
    #: What is allocated, in the card's granules.
    memory_bytes: int
    #: What the process may still take without asking; nobody's memory yet.
    credit_bytes: int
    #: Managed memory that the card had no room for.
    swapped_bytes: int
    resident_bytes: int
    busy_ns: int
    launches: int
    copied_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    description: CardDescription
    slots: tuple[CardSlot, ...]
    budget_hits: int
    reclaimed: int
    #: Breakpoints of the clock that a reader of them came too late for.
    lapped: int
    xid: int
    xid_count: int


def make(path: Path, description: CardDescription) -> None:
    """Write a new state file, readable only when it is complete (magic last)."""
    state = StateLayout(version=VERSION, bytes=ctypes.sizeof(StateLayout))
    state.made_ns = time.monotonic_ns()
    for field in fields(CardDescription):
        value = getattr(description, field.name)
        setattr(state.description, field.name, value.encode() if isinstance(value, str) else value)
    path.write_bytes(bytes(state))
    path.chmod(0o666)  # every tenant's process counts in it
    _write(path, StateLayout.magic.offset, _U64(MAGIC))


def read(path: Path) -> CardState:
    """Return a copy of a state file.

    Raises:
        CodecError: the file is none, or of another version.
    """
    data = path.read_bytes()
    if len(data) < ctypes.sizeof(StateLayout):
        raise CodecError(f"{path} is no card state", why=f"{len(data)} bytes are too few")
    state = StateLayout.from_buffer_copy(data)
    if state.magic != MAGIC or state.version != VERSION:
        raise CodecError(f"{path} is no card state of version {VERSION}")
    return CardState(
        description=_description(state.description),
        slots=tuple(_slots(state)),
        budget_hits=state.budget_hits,
        reclaimed=state.reclaimed,
        lapped=state.breakpoints_lapped,
        xid=state.faults.xid,
        xid_count=state.faults.xid_count,
    )


def raise_xid(path: Path, xid: int, *, fallen_off: bool = False) -> None:
    """Let the card report an XID error, as the driver's libraries then tell."""
    before = StateLayout.from_buffer_copy(path.read_bytes()).faults
    faults = StateLayout.faults.offset
    if fallen_off:
        _write(path, faults + FaultsLayout.fallen_off.offset, _U32(1))
    _write(path, faults + FaultsLayout.xid.offset, _U32(xid))
    # Readers look at the count, so it comes last.
    _write(path, faults + FaultsLayout.xid_count.offset, _U64(before.xid_count + 1))


def _description(layout: DescriptionLayout) -> CardDescription:
    values: dict[str, Any] = {}
    for field in fields(CardDescription):
        value = getattr(layout, field.name)
        values[field.name] = value.decode() if isinstance(value, bytes) else value
    return CardDescription(**values)


def _slots(state: StateLayout) -> Iterator[CardSlot]:
    for index in range(min(state.slot_count, MAX_SLOTS)):
        slot = state.slots[index]
        if slot.generation % 2 == 1:
            yield CardSlot(
                index=index,
                pid=slot.pid,
                name=slot.name.decode(errors="replace"),
                context_bytes=slot.context_bytes,
                memory_bytes=(slot.memory >> _MEMORY_BITS & _MEMORY_MASK) * GRANULE_BYTES,
                credit_bytes=(slot.memory & _MEMORY_MASK) * GRANULE_BYTES,
                swapped_bytes=slot.swapped_bytes,
                resident_bytes=slot.resident_bytes,
                busy_ns=slot.busy_ns,
                launches=slot.launches,
                copied_bytes=slot.copied_bytes,
            )


def _write(path: Path, offset: int, value: ctypes.c_uint32 | ctypes.c_uint64) -> None:
    # Seen at once by everybody who has the file mapped.
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        file.write(bytes(value))
