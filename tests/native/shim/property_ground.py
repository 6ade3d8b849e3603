"""Processes that make the calls they are told, on emulated cards with one container's limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import shim_harness as harness
from property_model import MIB

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.native import card
from testbed.native import region_layout as layout
from testbed.native.region import (
    RegionConstant,
    RegionDevice,
    RegionView,
    make_region,
    read_region,
    set_memory,
)

Answer = tuple[int, list[int]]


class Told:
    """A running ``calls.c``."""

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [program],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._buffer = b""
        self._slot = 0
        self.bytes = b""  # of the last answer's first buffer

    @property
    def pid(self) -> int:
        return self._process.pid

    def slot(self) -> int:
        """A slot that was not used yet."""
        self._slot += 1
        return self._slot

    def line(self, text: str) -> list[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(text.encode() + b"\n")
        deadline = time.monotonic() + harness.DEADLINE
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left)
            chunk = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                self._process.kill()
                _, errors = self._process.communicate()
                raise AssertionError(f"no answer to {text!r}: {errors.decode(errors='replace')}")
            self._buffer += chunk
        answer, _, self._buffer = self._buffer.partition(b"\n")
        return answer.decode().split()

    def __call__(self, name: str, *tokens: int | str | bytes) -> Answer:
        """Make a call; its result and what it wrote."""
        text = [
            t if isinstance(t, str) else f"#{t.hex()}" if isinstance(t, bytes) else str(t)
            for t in tokens
        ]
        result, *written = self.line(" ".join([name, *text]))
        buffers = [bytes.fromhex(word[1:]) for word in written if word.startswith("#")]
        self.bytes = buffers[0] if buffers else b""
        return int(result), [int(word) for word in written if not word.startswith("#")]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> str:
        """Let it end by itself; what it wrote to standard error."""
        _, errors = self._process.communicate(timeout=harness.DEADLINE)
        assert self._process.returncode == 0, errors.decode()
        return errors.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()


class Ground:
    """Two cards, one container."""

    CARDS = 2
    #: So many processes' places are looked at: the first ones are taken first.
    SLOTS = 16

    def __init__(self, folder: Path, caps: tuple[int, ...], *, sanitized: bool = False) -> None:
        self.root = folder / "root"
        specs = [CardSpec(profile="t4", count=self.CARDS)]
        self.uuids = driver_root.make(self.root, specs, budget_bytes=64 * MIB)
        (folder / "c").mkdir()
        devices = tuple(
            RegionDevice(uuid=uuid, memory_limit_bytes=cap)
            for uuid, cap in zip(self.uuids, caps, strict=True)
        )
        self.region = make_region(folder / "c", "cache", RegionConstant(devices=devices))
        library = harness.shim(sanitized=sanitized)
        self._bare = {"LD_LIBRARY_PATH": str(self.root / "driver")}
        self._limited = {
            **self._bare,
            **harness.preload_of(library, sanitized=sanitized),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.region),
        }
        self._program = harness.compile_(
            Path("calls"),
            [harness.HERE / "property" / "calls.c"],
            *("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-ldl"),
        )
        description = card.read(self._state(0)).description
        self.context_bytes = description.context_bytes
        self.capacity = description.memory_bytes - description.reserved_bytes

    def start(self, *, limited: bool = True) -> Told:
        return Told(self._program, self._limited if limited else self._bare)

    def _state(self, index: int) -> Path:
        return self.root / "cards" / self.uuids[index] / "state"

    def book(self, index: int) -> dict[int, int]:
        """What the card counts, by pid, with what of managed memory it had no room for."""
        found: dict[int, int] = {}
        with self._state(index).open("rb") as file:
            file.seek(card.StateLayout.slots.offset)
            data = file.read(ctypes.sizeof(card.SlotLayout) * self.SLOTS)
        for slot in (card.SlotLayout * self.SLOTS).from_buffer_copy(data):
            if slot.generation % 2:
                used = (slot.memory >> 22 & 0x3FFFFF) * card.GRANULE_BYTES
                found[slot.pid] = slot.context_bytes + used + slot.swapped_bytes
        return found

    def counted(self) -> dict[int, list[int]]:
        """What the library counts, by pid, for each card; dead processes' too."""
        start = layout.EXT_OFFSET + layout.Extension.records.offset
        size = ctypes.sizeof(layout.ProcessRecord)
        with self.region.open("rb") as file:
            file.seek(start)
            data = file.read(size * self.SLOTS)
        records = (layout.ProcessRecord * self.SLOTS).from_buffer_copy(data)
        return {
            record.pid: [
                use.context_bytes + use.module_bytes + use.buffer_bytes
                for use in record.use[: self.CARDS]
            ]
            for record in records
            if record.generation % 2
        }

    def view(self) -> RegionView:
        return read_region(self.region)

    def set_cap(self, index: int, cap: int) -> None:
        set_memory(self.region, {index: cap})
