"""The state of an emulated card: mirror of ``include/card.h``, its maker and reader."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any

from testbed.errors import CodecError
from testbed.native.card_book import Book, Rules

MAGIC = 0x3144524143555056
VERSION = 3
MAX_SLOTS = 256
RING = 2048
CLOSED = 64
ROWS = 128
#: What NVML says of a period in which several processes used the card: what each used, nothing
#: of processes, or the whole for one of them (``enum card_process_samples``).
SAMPLES_EACH, SAMPLES_NONE, SAMPLES_ONE = range(3)
CLOCK_SLICES = 0
CLOCK_SHARING = 1
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
        ("int8_flops", _U64),
        ("switch_ns", _U32),
        ("sample_lag_us", _U32),
        ("event_ns", _U32),
        ("process_samples", _U32),
        ("spare", _U64 * 25),
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
        ("submitted_ns", _U64),
        ("base_ns", _U64),
        ("launches", _U64),
        ("copied_bytes", _U64),
        ("name", ctypes.c_char * 32),
        ("swapped_bytes", _U64),
        ("gone", _U64),
        ("spare", _U64 * 16),
    )


class SegmentLayout(ctypes.Structure):
    """``struct card_segment``."""

    _fields_ = (("start_ns", _U64), ("end_ns", _U64), ("granted_ns", _U64), ("slot", _U64))


class BookLayout(ctypes.Structure):
    """``struct card_book``."""

    _fields_ = (
        ("time_ns", _U64),
        ("open_ns", _U64),
        ("switched_ns", _U64),
        ("turn_end_ns", _U64),
        ("segments", _U64),
        ("holder", _U32),
        ("working", _U32),
        ("fresh", _U32),
        ("slots", _U32),
        ("sharing", _U64 * (MAX_SLOTS // 64)),
        ("closed", SegmentLayout * CLOSED),
        ("granted_ns", _U64 * MAX_SLOTS),
    )


class RecordLayout(ctypes.Structure):
    """``struct card_record``."""

    _fields_ = (("sequence", _U64), ("segment", SegmentLayout), ("check", _U64))


class RowLayout(ctypes.Structure):
    """``struct card_row``."""

    _fields_ = (
        ("number", _U64),
        ("stamp_us", _U64),
        ("slots", _U64),
        ("granted_ns", _U64 * MAX_SLOTS),
    )


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
        ("current", _U64),
        ("lapped", _U64),
        ("spare2", _U64 * 6),
        ("faults", FaultsLayout),
        ("slots", SlotLayout * MAX_SLOTS),
        ("ring", RecordLayout * RING),
        ("rows", RowLayout * ROWS),
        ("books", BookLayout * (2 * MAX_SLOTS)),
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
    int8_flops: int = 0
    switch_ns: int = 150_000
    sample_lag_us: int = 100_000
    event_ns: int = 0
    process_samples: int = SAMPLES_EACH


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
    #: Device time granted to the process since it began on the card.
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
    """Return a copy of a state file, its book worked out to now.

    Raises:
        CodecError: the file is none, or of another version.
    """
    with path.open("rb", buffering=0) as file:
        state = _FrontLayout.from_buffer_copy(_piece(file, path, 0, _FrontLayout))
        if state.magic != MAGIC or state.version != VERSION:
            raise CodecError(f"{path} is no card state of version {VERSION}")
        book, slots = _consistent(file, path)
    description = _description(state.description)
    granted = _granted_now(book, slots, description)
    return CardState(
        description=description,
        slots=tuple(_slots(state.slot_count, slots, granted)),
        budget_hits=state.budget_hits,
        reclaimed=state.reclaimed,
        lapped=state.lapped,
        xid=state.faults.xid,
        xid_count=state.faults.xid_count,
    )


def read_granted(path: Path) -> list[int]:
    """Return the device time that each slot has been granted since the card was made, ns,
    over all processes that ever had it, worked out to now.

    Raises:
        CodecError: the file is none, or of another version.
    """
    with path.open("rb", buffering=0) as file:
        state = _FrontLayout.from_buffer_copy(_piece(file, path, 0, _FrontLayout))
        if state.magic != MAGIC or state.version != VERSION:
            raise CodecError(f"{path} is no card state of version {VERSION}")
        book, slots = _consistent(file, path)
    return _granted_now(book, slots, _description(state.description))


class _FrontLayout(ctypes.Structure):
    """What comes before the slots in ``struct card_state``."""

    _fields_ = [f for f in StateLayout._fields_ if f[0] not in ("slots", "ring", "rows", "books")]


_Slots = SlotLayout * MAX_SLOTS


def _piece(file: FileIO, path: Path, offset: int, layout: type[Any]) -> bytes:
    size = ctypes.sizeof(layout)
    data = os.pread(file.fileno(), size, offset)
    if len(data) < size:
        raise CodecError(f"{path} is no card state", why=f"{offset + len(data)} bytes are too few")
    return data


def _consistent(file: FileIO, path: Path) -> tuple[BookLayout, Any]:
    # A book that is current is never changed; once it is not, its place is used again.
    while True:
        offset = StateLayout.current.offset
        current = _U64.from_buffer_copy(_piece(file, path, offset, _U64)).value
        place = StateLayout.books.offset + current % (2 * MAX_SLOTS) * ctypes.sizeof(BookLayout)
        book = BookLayout.from_buffer_copy(_piece(file, path, place, BookLayout))
        slots = _Slots.from_buffer_copy(_piece(file, path, StateLayout.slots.offset, _Slots))
        if _U64.from_buffer_copy(_piece(file, path, offset, _U64)).value == current:
            return book, slots


def _granted_now(book: BookLayout, slots: Any, description: CardDescription) -> list[int]:
    known = min(book.slots, MAX_SLOTS)
    now = Book(
        time_ns=book.time_ns,
        open_ns=book.open_ns,
        switched_ns=book.switched_ns,
        turn_end_ns=book.turn_end_ns,
        holder=book.holder,
        working=book.working,
        sharing=frozenset(i for i in range(MAX_SLOTS) if book.sharing[i // 64] >> i % 64 & 1),
        granted_ns=list(book.granted_ns[:known]) + [0] * (MAX_SLOTS - known),
    )
    used = max((i + 1 for i in range(MAX_SLOTS) if slots[i].generation % 2), default=0)
    if used == 0:
        return now.granted_ns
    ready = [
        slot.submitted_ns if slot.generation % 2 and slot.gone != slot.generation else 0
        for slot in slots[: max(used, now.holder, known)]
    ]
    now.granted_ns = now.granted_ns[: len(ready)]
    rules = Rules(
        sharing=description.clock_mode == CLOCK_SHARING,
        slice_ns=description.time_slice_us * 1000 or 2_000_000,
        switch_ns=description.switch_ns,
    )
    now.advance(ready, rules, time.monotonic_ns())
    return now.granted_ns + [0] * (MAX_SLOTS - len(now.granted_ns))


def raise_xid(path: Path, xid: int, *, fallen_off: bool = False) -> None:
    """Let the card report an XID error, as the driver's libraries then tell."""
    with path.open("rb", buffering=0) as file:
        before = _FrontLayout.from_buffer_copy(_piece(file, path, 0, _FrontLayout)).faults
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


def _slots(count: int, slots: Any, granted: Sequence[int]) -> Iterator[CardSlot]:
    for index in range(min(count, MAX_SLOTS)):
        slot = slots[index]
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
                busy_ns=max(0, granted[index] - slot.base_ns),
                launches=slot.launches,
                copied_bytes=slot.copied_bytes,
            )


def _write(path: Path, offset: int, value: ctypes.c_uint32 | ctypes.c_uint64) -> None:
    # Seen at once by everybody who has the file mapped.
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        file.write(bytes(value))
