"""Any sequence of memory calls of several processes: the library's counters, a model and the
card's own book agree after every step, and the cap is never passed.

``VGPU_TESTBED_EXAMPLES=2000 pytest tests/native/shim/test_property.py`` looks much further, with
other sequences each time; without it the sequences are always the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from property_ground import Ground, Told
from property_model import (
    GRANULE,
    MIB,
    Block,
    Context,
    Holding,
    Physical,
    granules,
    pitched,
)

from testbed.native import build

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

EXAMPLES = int(os.environ.get("VGPU_TESTBED_EXAMPLES", "0"))
OUT_OF_MEMORY = 2
MOST_PROCESSES = 3
#: What the library charges in advance for stream-ordered memory's own needs, and for a context
#: whose cost nobody knows yet; it may refuse that much early.
ORDERED = 72 * MIB
FIRST_CONTEXT = 512 * MIB
DEVICE, PINNED = 1, 1
RELEASE_THRESHOLD, RESERVED = 4, 5

_sizes = st.one_of(
    st.integers(1, 3 * MIB),
    st.sampled_from([511, 512, 513, MIB, MIB + 1, GRANULE - 1, GRANULE, GRANULE + 1]),
    st.integers(1, 600).map(lambda n: n * MIB),
    st.integers(600, 20_000).map(lambda n: n * MIB),
)
_caps = st.one_of(
    st.sampled_from([0, MIB, 100 * MIB, 300 * MIB, 1 << 30, 40 << 30]),
    st.integers(200, 3000).map(lambda n: n * MIB + n),
)
_which = st.integers(0, 1 << 16)


def pool_props(card: int) -> bytes:
    return struct.pack("<iiiiQQ56x", PINNED, 0, DEVICE, card, 0, 0)


def physical_props(card: int, *, exported: bool) -> bytes:
    return struct.pack("<iiiiQ8x", PINNED, int(exported), DEVICE, card, 0)


class Process:
    """A program, what the model says of it, and what only the driver knows of it."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.holding = Holding()
        self.streams: list[int] = [0]
        self.pools: list[tuple[int, int]] = []  # (slot, card)
        self.ordered: list[tuple[int, int, int]] = []  # (slot, card, pool or 0)
        self.graphs: list[tuple[int, int]] = []  # (slot, card)
        self.execs: list[int] = []
        self.opened: list[int] = []  # slots of memory of others

    @property
    def held(self) -> Holding:
        return self.holding

    def reserved(self, card: int) -> int:
        """What pools and graphs keep of a card, as the driver tells; 0 without a context."""
        slot = self.told.slot()
        total = 0
        for pool, of in [*self.default_pools(card), *self.pools]:
            if of == card:
                result, (value,) = self.told(
                    "cuMemPoolGetAttribute", f"${pool}", RESERVED, f"&{slot}"
                )
                assert result == 0
                total += value
        result, (value,) = self.told("cuDeviceGetGraphMemAttribute", card, 2, f"&{slot}")
        assert result == 0
        return total + value

    def has_orphans(self, card: int) -> bool:
        """Whether it has memory of a pool that was destroyed."""
        pools = {slot for slot, _ in self.pools} | {0}
        return any(pool not in pools for _, of, pool in self.ordered if of == card)

    def default_pools(self, card: int) -> list[tuple[int, int]]:
        slot = self.told.slot()
        assert self.told("cuDeviceGetDefaultMemPool", f"&{slot}", card)[0] == 0
        return [(slot, card)]


class Machine(RuleBasedStateMachine):
    """Processes of one container on two cards."""

    sanitized = False
    limited = True

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="vgpu-property-"))
        self.stack.callback(shutil.rmtree, folder)
        self.folder = folder
        self.processes: list[Process] = []
        self.neighbours: list[Told] = []
        self.before = [0] * Ground.CARDS

    @initialize(caps=st.tuples(_caps, _caps))
    def begin(self, caps: tuple[int, int]) -> None:
        self.caps = list(caps)
        self.ground = Ground(self.folder, caps, sanitized=self.sanitized)
        self.start()
        self.start()
        for which, card in ((0, 0), (1, 1), (1, 0)):
            self.retain_primary(which, card)

    def teardown(self) -> None:
        try:
            if self.processes:
                self.end()
        finally:
            for process in self.processes:
                with process.told:
                    pass
            for neighbour in self.neighbours:
                with neighbour:
                    pass
            self.stack.close()

    def end(self) -> None:
        """Whatever was done, at the end nothing is counted."""
        for process in self.processes:
            assert process.told.end() == ""
        self.processes = []
        assert [use.total_bytes for use in self.ground.view().used] == [0] * Ground.CARDS

    # --- what is chosen ---------------------------------------------------------------------

    def one(self, which: int) -> Process:
        return self.processes[which % len(self.processes)]

    def with_context(self, which: int) -> Process | None:
        able = [process for process in self.processes if process.held.current]
        return able[which % len(able)] if able else None

    def used(self, card: int) -> int:
        return sum(self.ground.book(card).get(p.told.pid, 0) for p in self.processes)

    def room(self, card: int) -> int:
        """What is left of the cap and of the card, the neighbours' part taken off."""
        limit = self.caps[card] or 1 << 62
        return min(limit - self.used(card), self.physical_room(card))

    def physical_room(self, card: int) -> int:
        living = {p.told.pid for p in self.processes} | {n.pid for n in self.neighbours}
        book = self.ground.book(card)
        return self.ground.capacity - sum(book.get(pid, 0) for pid in living)

    def idle(self, card: int) -> int:
        """What pools and graphs may keep without using it, and give back for others."""
        return sum(p.reserved(card) for p in self.processes)

    def judge(self, result: int, card: int, size: int, room: int, idle: int, what: str) -> bool:
        """An allocation of `size` more was answered; whether it was granted."""
        assert result in (0, OUT_OF_MEMORY), f"{what}: {result}"
        if size <= room:
            assert result == 0, f"{what} of {size} bytes refused, {room} are free"
        if size > room + idle:
            assert result == OUT_OF_MEMORY, f"{what} of {size} bytes granted, {room} are free"
        return result == 0

    # --- processes --------------------------------------------------------------------------

    @precondition(lambda self: len(self.processes) < MOST_PROCESSES)
    @rule()
    def start(self) -> None:
        told = self.ground.start(limited=self.limited)
        assert told("cuInit", 0)[0] == 0
        self.processes.append(Process(told))

    @precondition(lambda self: len(self.processes) > 1)
    @rule(which=_which)
    def kill(self, which: int) -> None:
        process = self.one(which)
        process.told.kill()
        self.processes.remove(process)

    @rule(which=_which, size=_sizes)
    def fork(self, which: int, size: int) -> None:
        """CUDA does not work in a forked child: nothing is counted there, nor changed here."""
        told = self.one(which).told
        result, _pid = told.line("fork")
        assert result == "0"
        slot = told.slot()
        assert told("cuMemAlloc_v2", f"&{slot}", size)[0] != 0
        assert told.line("exit") == ["0"]

    @rule(card=st.integers(0, 1), cap=_caps)
    def change_the_cap(self, card: int, cap: int) -> None:
        self.ground.set_cap(card, cap)
        self.caps[card] = cap

    @rule(card=st.integers(0, 1), leave=st.integers(0, 900).map(lambda n: n * MIB))
    def a_neighbour_fills_the_card(self, card: int, leave: int) -> None:
        """The driver itself will refuse then."""
        if self.neighbours or self.physical_room(card) < leave + self.ground.context_bytes:
            return
        told = self.ground.start(limited=False)
        self.neighbours.append(told)
        assert told("cuInit", 0)[0] == 0
        slot = told.slot()
        assert told("cuDevicePrimaryCtxRetain", f"&{slot}", card)[0] == 0
        assert told("cuCtxSetCurrent", f"${slot}")[0] == 0
        rest = (self.physical_room(card) - leave) // GRANULE * GRANULE
        if rest > 0:
            assert told("cuMemAlloc_v2", f"&{told.slot()}", rest)[0] == 0

    @precondition(lambda self: self.neighbours)
    @rule()
    def the_neighbour_goes(self) -> None:
        self.neighbours.pop().end()

    # --- contexts ---------------------------------------------------------------------------

    def _context(self, process: Process, card: int, name: str, *tokens: Any) -> None:
        room, used = self.room(card), self.used(card)
        cost = self.ground.context_bytes
        slot = process.told.slot()
        primary = name == "cuDevicePrimaryCtxRetain"
        there = [c for c in process.held.contexts.values() if c.primary and c.card == card]
        result, (value,) = process.told(name, f"&{slot}", *tokens)
        if primary and there:
            assert result == 0
            there[0].references += 1
            return
        assert result in (0, OUT_OF_MEMORY)
        first = used == 0
        if max(cost, FIRST_CONTEXT) <= room or (first and cost <= self.physical_room(card)):
            assert result == 0, "a context that fits"
        if not first and cost > room + self.idle(card):
            assert result == OUT_OF_MEMORY, "a context that does not fit"
        if result == 0:
            process.held.contexts[value] = Context(slot, value, card, primary)
            self._set_current(process, process.held.contexts[value])
        else:
            self._set_current(process, None)

    def _set_current(self, process: Process, context: Context | None) -> None:
        slot = f"${context.slot}" if context else "0"
        assert process.told("cuCtxSetCurrent", slot)[0] == 0
        process.held.current = context.value if context else 0

    @rule(which=_which, card=st.integers(0, 1))
    def retain_primary(self, which: int, card: int) -> None:
        self._context(self.one(which), card, "cuDevicePrimaryCtxRetain", card)

    @rule(which=_which, card=st.integers(0, 1))
    def create_context(self, which: int, card: int) -> None:
        process = self.one(which)
        if len(process.held.contexts) < 4:
            self._context(process, card, "cuCtxCreate_v2", 0, card)

    def _context_gone(self, process: Process, context: Context) -> None:
        process.held.gone(context.value)
        process.streams = [0]
        if context.primary:  # and with it what the device's pools have given
            process.ordered = [o for o in process.ordered if o[1] != context.card]
        self._set_current(process, None)

    @rule(which=_which, name=st.sampled_from(["cuCtxDestroy_v2", "cuCtxDetach"]))
    def destroy_context(self, which: int, name: str) -> None:
        process = self.one(which)
        own = [c for c in process.held.contexts.values() if not c.primary]
        if own:
            context = own[which % len(own)]
            assert process.told(name, f"${context.slot}")[0] == 0
            self._context_gone(process, context)

    @rule(which=_which, reset=st.booleans())
    def release_primary(self, which: int, reset: bool) -> None:
        process = self.one(which)
        own = [c for c in process.held.contexts.values() if c.primary]
        if not own:
            return
        context = own[which % len(own)]
        name = "cuDevicePrimaryCtxReset_v2" if reset else "cuDevicePrimaryCtxRelease_v2"
        assert process.told(name, context.card)[0] == 0
        context.references -= 1
        if reset or context.references == 0:
            self._context_gone(process, context)

    @rule(which=_which, choose=_which)
    def switch(self, which: int, choose: int) -> None:
        process = self.one(which)
        contexts = list(process.held.contexts.values())
        if contexts:
            self._set_current(process, contexts[choose % len(contexts)])

    # --- plain memory -----------------------------------------------------------------------

    def _plain(
        self, which: int, size: int, what: str, call: Callable[[Process, int], int]
    ) -> tuple[Process, int] | None:
        process = self.with_context(which)
        if process is None:
            return None
        card = process.held.card
        room, idle = self.room(card), self.idle(card)
        slot = process.told.slot()
        if what == "cuMemAllocManaged":  # lies elsewhere where the card has no room
            room = (self.caps[card] or 1 << 62) - self.used(card)
        growth = process.held.growth(card, size)
        if self.judge(call(process, slot), card, growth, room, idle, what):
            return process, slot
        return None

    def _keep(self, made: tuple[Process, int] | None, size: int, *, array: bool = False) -> None:
        if made is None:
            return
        process, slot = made
        held = process.held
        block = Block(slot, 0, held.card, size, held.current)
        (held.arrays if array else held.blocks).append(block)

    @rule(which=_which, size=_sizes, thread=st.booleans())
    def allocate(self, which: int, size: int, thread: bool) -> None:
        name = "thread cuMemAlloc_v2" if thread else "cuMemAlloc_v2"
        self._keep(
            self._plain(which, size, name, lambda p, s: p.told(name, f"&{s}", size)[0]), size
        )

    @rule(which=_which, size=_sizes)
    def allocate_managed(self, which: int, size: int) -> None:
        name = "cuMemAllocManaged"
        self._keep(
            self._plain(which, size, name, lambda p, s: p.told(name, f"&{s}", size, 1)[0]), size
        )

    @rule(which=_which, width=st.integers(1, 5000), height=st.integers(1, 40_000))
    def allocate_pitched(self, which: int, width: int, height: int) -> None:
        name, size = "cuMemAllocPitch_v2", pitched(width, height)

        def call(process: Process, slot: int) -> int:
            row = process.told.slot()
            return process.told(name, f"&{slot}", f"&{row}", width, height, 4)[0]

        self._keep(self._plain(which, size, name, call), size)

    @rule(
        which=_which,
        choose=_which,
        how=st.sampled_from(["cuMemFree_v2", "thread cuMemFree_v2", "cuMemFreeAsync"]),
        twice=st.booleans(),
    )
    def free(self, which: int, choose: int, how: str, twice: bool) -> None:
        """With whichever context is current, on whichever card and thread."""
        process = self.with_context(which)
        if process is None or not process.held.blocks:
            return
        block = process.held.blocks.pop(choose % len(process.held.blocks))
        stream = ["0"] if how == "cuMemFreeAsync" else []
        assert process.told(how, f"${block.slot}", *stream)[0] == 0
        if twice:
            assert process.told(how, f"${block.slot}", *stream)[0] != 0

    @rule(which=_which, address=st.sampled_from([1, 0x1234500000, 1 << 47]))
    def free_what_is_not_there(self, which: int, address: int) -> None:
        process = self.with_context(which)
        if process is not None:
            assert process.told("cuMemFree_v2", address)[0] != 0
            assert process.told("cuMemRelease", address)[0] != 0

    @rule(
        which=_which,
        width=st.integers(1, 64),
        rows=st.integers(0, 300),
        depth=st.integers(0, 9),
    )
    def create_array(self, which: int, width: int, rows: int, depth: int) -> None:
        """Of shapes that the card and the library count alike: whole rows, in eights."""
        width, height = width * 512, rows * 8
        depth = depth if height else 0
        size = width * max(height, 1) * max(depth, 1)
        shape = struct.pack("<QQQiII4x", width, height, depth, 1, 1, 0)
        name = "cuArray3DCreate_v2"
        made = self._plain(which, size, name, lambda p, s: p.told(name, f"&{s}", shape)[0])
        self._keep(made, size, array=True)

    @rule(which=_which, power=st.integers(3, 10), levels=st.integers(1, 3))
    def create_mipmaps(self, which: int, power: int, levels: int) -> None:
        width, height = 512 << levels, 8 << power
        size = sum((width >> i) * (height >> i) for i in range(levels))
        shape = struct.pack("<QQQiII4x", width, height, 0, 1, 1, 0)
        name = "cuMipmappedArrayCreate"
        made = self._plain(which, size, name, lambda p, s: p.told(name, f"&{s}", shape, levels)[0])
        if made is not None:
            process, slot = made
            held = process.held
            held.arrays.append(Block(slot, 1, held.card, size, held.current))

    @rule(which=_which, choose=_which, twice=st.booleans())
    def destroy_array(self, which: int, choose: int, twice: bool) -> None:
        process = self.with_context(which)
        if process is None or not process.held.arrays:
            return
        array = process.held.arrays.pop(choose % len(process.held.arrays))
        name = "cuMipmappedArrayDestroy" if array.value else "cuArrayDestroy"
        assert process.told(name, f"${array.slot}")[0] == 0
        if twice:
            assert process.told(name, f"${array.slot}")[0] != 0

    # --- stream-ordered memory --------------------------------------------------------------

    @rule(which=_which, size=_sizes, choose=_which, explicit=st.booleans())
    def allocate_ordered(self, which: int, size: int, choose: int, explicit: bool) -> None:
        process = self.with_context(which)
        if process is None:
            return
        told, card = process.told, process.held.card
        pools = [pool for pool in process.pools if pool[1] == card]
        room, idle = self.room(card), self.idle(card)
        slot = told.slot()
        stream = f"${process.streams[-1]}" if process.streams[-1] else "0"
        if explicit and pools:
            pool = pools[choose % len(pools)][0]
            result, _ = told("cuMemAllocFromPoolAsync", f"&{slot}", size, f"${pool}", stream)
        else:
            pool = 0
            result, _ = told("cuMemAllocAsync", f"&{slot}", size, stream)
        assert result in (0, OUT_OF_MEMORY)
        if granules(size) + ORDERED <= room:
            assert result == 0, f"stream-ordered allocation of {size} bytes, {room} are free"
        if granules(size) > room + idle and size > idle:
            assert result == OUT_OF_MEMORY
        if result == 0:
            process.ordered.append((slot, card, pool))

    @rule(which=_which, choose=_which, ordered=st.booleans(), synchronize=st.booleans())
    def free_ordered(self, which: int, choose: int, ordered: bool, synchronize: bool) -> None:
        process = self.with_context(which)
        if process is None or not process.ordered:
            return
        slot, *_ = process.ordered.pop(choose % len(process.ordered))
        call = ("cuMemFreeAsync", f"${slot}", "0") if ordered else ("cuMemFree_v2", f"${slot}")
        assert process.told(*call)[0] == 0
        if synchronize:
            self.synchronize(which)

    @rule(which=_which)
    def synchronize(self, which: int) -> None:
        process = self.with_context(which)
        if process is not None:
            assert process.told("cuCtxSynchronize")[0] == 0

    @rule(which=_which, threshold=st.sampled_from([0, 64 * MIB, (1 << 64) - 1]))
    def create_pool(self, which: int, threshold: int) -> None:
        process = self.with_context(which)
        if process is None:
            return
        told, slot = process.told, process.told.slot()
        props = pool_props(process.held.card)
        assert told("cuMemPoolCreate", f"&{slot}", props)[0] == 0
        value = struct.pack("<Q", threshold)
        assert told("cuMemPoolSetAttribute", f"${slot}", RELEASE_THRESHOLD, value)[0] == 0
        process.pools.append((slot, process.held.card))

    @rule(which=_which, choose=_which, threshold=st.sampled_from([0, 64 * MIB, (1 << 64) - 1]))
    def keep_in_default_pool(self, which: int, choose: int, threshold: int) -> None:
        process = self.with_context(which)
        if process is not None:
            ((slot, _),) = process.default_pools(process.held.card)
            value = struct.pack("<Q", threshold)
            call = ("cuMemPoolSetAttribute", f"${slot}", RELEASE_THRESHOLD, value)
            assert process.told(*call)[0] == 0

    @rule(which=_which, choose=_which, keep=_sizes)
    def trim_pool(self, which: int, choose: int, keep: int) -> None:
        process = self.with_context(which)
        if process is not None and process.pools:
            slot, _ = process.pools[choose % len(process.pools)]
            assert process.told("cuMemPoolTrimTo", f"${slot}", keep)[0] == 0

    @rule(which=_which, choose=_which)
    def destroy_pool(self, which: int, choose: int) -> None:
        """What was allocated from it lives on, and counts until it is freed."""
        process = self.with_context(which)
        if process is not None and process.pools:
            slot, _ = process.pools.pop(choose % len(process.pools))
            assert process.told("cuMemPoolDestroy", f"${slot}")[0] == 0

    @rule(which=_which)
    def stream(self, which: int) -> None:
        process = self.with_context(which)
        if process is None:
            return
        slot = process.told.slot()
        result, _ = process.told("cuStreamCreate", f"&{slot}", 1)
        assert result in (0, OUT_OF_MEMORY)
        # it belongs to this context; the next allocation may be on another
        if result == 0:
            assert process.told("cuStreamDestroy_v2", f"${slot}")[0] == 0

    # --- physical memory --------------------------------------------------------------------

    @rule(which=_which, granules_=st.integers(1, 400), card=st.integers(0, 1))
    def create_physical(self, which: int, granules_: int, card: int) -> None:
        """On whichever card; a context on it is not needed."""
        process, size = self.one(which), granules_ * GRANULE
        if not process.held.contexts:
            return
        room, idle = self.room(card), self.idle(card)
        slot = process.told.slot()
        props = physical_props(card, exported=True)
        result, _ = process.told("cuMemCreate", f"&{slot}", size, props, 0)
        if self.judge(result, card, size, room, idle, "cuMemCreate"):
            process.held.physical.append(Physical(card, size, True, handles=[slot]))

    def _physical(self, which: int, choose: int, *, handles: bool) -> tuple[Any, Any]:
        process = self.one(which)
        found = [p for p in process.held.physical if (p.handles if handles else p.maps)]
        return (process, found[choose % len(found)]) if found else (None, None)

    @rule(which=_which, choose=_which)
    def release_physical(self, which: int, choose: int) -> None:
        process, physical = self._physical(which, choose, handles=True)
        if process is not None:
            slot = physical.handles.pop(choose % len(physical.handles))
            assert process.told("cuMemRelease", f"${slot}")[0] == 0

    @rule(which=_which, choose=_which)
    def map_physical(self, which: int, choose: int) -> None:
        process, physical = self._physical(which, choose, handles=True)
        if process is None:
            return
        told, at = process.told, process.told.slot()
        assert told("cuMemAddressReserve", f"&{at}", physical.size, 0, 0, 0)[0] == 0
        handle = f"${physical.handles[0]}"
        assert told("cuMemMap", f"${at}", physical.size, 0, handle, 0)[0] == 0
        physical.maps[at] = at

    @rule(which=_which, choose=_which)
    def unmap_physical(self, which: int, choose: int) -> None:
        process, physical = self._physical(which, choose, handles=False)
        if process is None:
            return
        at = physical.maps.pop(list(physical.maps)[choose % len(physical.maps)])
        assert process.told("cuMemUnmap", f"${at}", physical.size)[0] == 0
        assert process.told("cuMemUnmap", f"${at}", physical.size)[0] != 0

    @rule(which=_which, choose=_which)
    def retain_physical(self, which: int, choose: int) -> None:
        process, physical = self._physical(which, choose, handles=False)
        if process is None:
            return
        slot = process.told.slot()
        at = list(physical.maps)[choose % len(physical.maps)]
        assert process.told("cuMemRetainAllocationHandle", f"&{slot}", f"${at}")[0] == 0
        physical.handles.append(slot)

    @rule(which=_which, choose=_which, to=_which)
    def export_physical(self, which: int, choose: int, to: int) -> None:
        """The importer pays nothing."""
        process, physical = self._physical(which, choose, handles=True)
        if process is None or not physical.charged:
            return
        told, other, descriptor = process.told, self.one(to), process.told.slot()
        if other is process or not other.held.contexts:
            return
        handle = f"${physical.handles[0]}"
        result, (number,) = told("cuMemExportToShareableHandle", f"&{descriptor}", handle, 1, 0)
        assert result == 0
        number &= 0xFFFFFFFF
        path = f"/proc/{told.pid}/fd/{number}".encode() + b"\0"
        opened, _ = other.told("open", path, os.O_RDWR)
        assert opened >= 0
        slot = other.told.slot()
        result, _ = other.told("cuMemImportFromShareableHandle", f"&{slot}", opened, 1)
        assert result == 0
        other.told("close", opened)
        told("close", number)
        other.held.physical.append(Physical(physical.card, physical.size, False, handles=[slot]))

    # --- memory of another process ----------------------------------------------------------

    @rule(which=_which, choose=_which, to=_which)
    def open_ipc(self, which: int, choose: int, to: int) -> None:
        process, other = self.one(which), self.one(to)
        blocks = (
            [b for b in process.held.blocks if b.size > MIB and b.card == process.held.card]
            if process.held.current
            else []
        )
        if other is process or not blocks or not other.held.current:
            return
        block = blocks[choose % len(blocks)]
        if other.held.card != block.card:
            return
        result, _ = process.told("cuIpcGetMemHandle", bytes(64), f"${block.slot}")
        if result != 0:  # managed memory has none
            return
        handle = process.told.bytes
        slot = other.told.slot()
        result, _ = other.told("value cuIpcOpenMemHandle_v2", f"&{slot}", handle, 1)
        assert result == 0
        assert other.told("cuMemFree_v2", f"${slot}")[0] != 0
        assert other.told("cuIpcCloseMemHandle", f"${slot}")[0] == 0

    # --- graphs -----------------------------------------------------------------------------

    @rule(which=_which, size=_sizes, freed=st.booleans())
    def build_graph(self, which: int, size: int, freed: bool) -> None:
        process = self.with_context(which)
        if process is None:
            return
        told, card = process.told, process.held.card
        graph, node = told.slot(), told.slot()
        assert told("cuGraphCreate", f"&{graph}", 0)[0] == 0
        params = pool_props(card) + struct.pack("<QQQQ", 0, 0, size, 0)
        room = self.room(card)
        idle = self.idle(card)
        result, _ = told("cuGraphAddMemAllocNode", f"&{node}", f"${graph}", 0, 0, params)
        assert result in (0, OUT_OF_MEMORY)
        if granules(size) <= room:
            assert result == 0, f"memory node of {size} bytes, {room} are free"
        if granules(size) > room + idle and size > idle:
            assert result == OUT_OF_MEMORY
        if result != 0:
            assert told("cuGraphDestroy", f"${graph}")[0] == 0
            return
        process.graphs.append((graph, card))
        if freed:
            pointer = struct.unpack("<Q", told.bytes[-8:])[0]
            freeing = told.slot()
            call = ("cuGraphAddMemFreeNode", f"&{freeing}", f"${graph}", f"&{node}", 1, pointer)
            assert told(*call)[0] == 0

    @rule(which=_which, choose=_which)
    def launch_graph(self, which: int, choose: int) -> None:
        process = self.with_context(which)
        if process is None:
            return
        own = [g for g, card in process.graphs if card == process.held.card]
        if not own:
            return
        told, exec_ = process.told, process.told.slot()
        graph = own[choose % len(own)]
        assert told("cuGraphInstantiateWithFlags", f"&{exec_}", f"${graph}", 0)[0] == 0
        assert told("cuGraphLaunch", f"${exec_}", "0")[0] in (0, OUT_OF_MEMORY)
        assert told("cuStreamSynchronize", "0")[0] == 0
        assert told("cuGraphExecDestroy", f"${exec_}")[0] == 0

    @rule(which=_which, choose=_which, trim=st.booleans())
    def destroy_graph(self, which: int, choose: int, trim: bool) -> None:
        process = self.with_context(which)
        if process is None or not process.graphs:
            return
        graph, card = process.graphs.pop(choose % len(process.graphs))
        assert process.told("cuGraphDestroy", f"${graph}")[0] == 0
        if trim:
            assert process.told("cuDeviceGraphMemTrim", card)[0] == 0

    # --- what holds always ------------------------------------------------------------------

    @invariant()
    def all_agree(self) -> None:
        if not self.processes:
            return
        counted = self.ground.counted()
        for card in range(Ground.CARDS):
            book = self.ground.book(card)
            for process in self.processes:
                told = process.told
                library = counted.get(told.pid, [0, 0])[card]
                model = process.held.bytes(card, self.ground.context_bytes)
                model += process.reserved(card)
                if process.has_orphans(card):  # which nobody can ask for any more
                    model = library
                opinions = (library, model, book.get(told.pid, 0))
                assert len(set(opinions)) == 1, f"card {card}, library, model, book: {opinions}"
            self.never_above(card, sum(book.get(p.told.pid, 0) for p in self.processes))
        self.what_is_seen()

    def never_above(self, card: int, used: int) -> None:
        """Nothing was granted beyond the cap: but a first context, and what was there before."""
        cap, before = self.caps[card], self.before[card]
        first = before == 0 and used == self.ground.context_bytes
        assert cap == 0 or used <= cap or used <= before or first, f"{used} of {cap}"
        self.before[card] = used

    def what_is_seen(self) -> None:
        for process in self.processes:
            if not process.held.current:
                continue
            card = process.held.card
            free, total = process.told.slot(), process.told.slot()
            result, seen = process.told("cuMemGetInfo_v2", f"&{free}", f"&{total}")
            assert result == 0
            cap = self.caps[card]
            assert seen[1] == (min(cap, self.ground.capacity) if cap else self.ground.capacity)
            if cap:
                left = max(0, min(cap - self.used(card), self.ground.capacity))
                assert seen[0] <= left
                if not self.neighbours:
                    assert seen[0] == min(left, self.physical_room(card))


class Sanitized(Machine):
    sanitized = True


class Bare(Machine):
    limited = False


def run(machine: type[Machine], examples: int, phases: Iterable[Phase] = tuple(Phase)) -> None:
    build.build(["emu"])
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=EXAMPLES == 0,
            max_examples=EXAMPLES or examples,
            stateful_step_count=30,
            phases=phases,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )


@pytest.mark.parametrize(("machine", "examples"), [(Machine, 120), (Sanitized, 20)])
def test_any_sequence_of_calls(machine: type[Machine], examples: int) -> None:
    run(machine, examples)


def test_control_without_the_library() -> None:
    with pytest.raises(AssertionError, match="library, model, book"):
        run(Bare, 5, [Phase.generate])
