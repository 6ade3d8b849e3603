"""What only an emulated card can tell: it stands in the card's own state."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from testbed.native import card
from testbed.stack.devices.driver_root import DriverRoot

Clock = Literal["slices", "sharing"]

_CLOCKS: tuple[Clock, Clock] = ("slices", "sharing")
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bit


@dataclass(frozen=True, slots=True, kw_only=True)
class CardBook:
    """A card's own accounting at one moment.

    Attributes:
        clock: How the card's time is shared out.
        lapped: Points of its clock that a reader came too late for; a measurement
            during which it grew is partly interpolated.
        budget_hits: How often the host's memory budget refused something.
        busy_ns: Device time of each process since it began on the card, ns, by pid in
            this process' namespace.
        swapped_bytes: Managed memory of each process that lies outside the card, likewise.
    """

    clock: Clock
    lapped: int
    budget_hits: int
    busy_ns: Mapping[int, int]
    swapped_bytes: Mapping[int, int] = field(default_factory=dict)


def card_book(root: DriverRoot, uuid: str) -> CardBook | None:
    """Return the books of an emulated card, None on hardware, which keeps none.

    Raises:
        CodecError, OSError: the card's state cannot be read.
    """
    if not root.emulated:
        return None
    # Beside the library, where this process sees the root.
    folder = root.nvml.parent.parent / "cards" / uuid
    state = card.read(folder / "state")
    owners = _owners(folder / "cuda.lock", (slot.index for slot in state.slots))
    busy: dict[int, int] = {}
    swapped: dict[int, int] = {}
    for slot in state.slots:
        pid = owners.get(slot.index)
        if pid:
            busy[pid] = busy.get(pid, 0) + slot.busy_ns
            swapped[pid] = swapped.get(pid, 0) + slot.swapped_bytes
    return CardBook(
        clock=_CLOCKS[state.description.clock_mode != 0],
        lapped=state.lapped,
        budget_hits=state.budget_hits,
        busy_ns=busy,
        swapped_bytes=swapped,
    )


def _owners(lock: Path, slots: Iterable[int]) -> dict[int, int]:
    """Return the pids of the slots whose owners live.

    The pid that a slot names is its owner's own, in whatever namespace; the kernel
    tells it in ours. We hold no lock of this file, so closing it drops none.
    """
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}  # no process has used the card yet
    try:
        found = {}
        for slot in slots:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
            answer = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if answer[0] != fcntl.F_UNLCK and answer[4] > 0:
                found[slot] = int(answer[4])
        return found
    finally:
        os.close(file)
