"""A process that is killed at any instruction of a call: the others go on, and have its memory.

What the library does in a call is followed one instruction at a time (ptrace) and then done
anew for each point, with a SIGKILL there: before instructions spread over all that it comes
through, and at every stop before and after a system call, where record locks are taken and given
back. It takes place on the emulated card, so the driver dies half-way too.
``VGPU_TESTBED_POINTS=5000 pytest tests/native/shim/test_steps.py`` takes every instruction.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import GIB, MIB, Container

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.native import build, card
from testbed.native import region_layout as layout
from testbed.native.region import RegionConstant, RegionDevice, make_region

CAP = 4 * GIB
#: Of each call: instructions, and as many stops at system calls at most.
POINTS = int(os.environ.get("VGPU_TESTBED_POINTS", "150"))
NOT_TRACED = "failed 0x500"
CALLS = ("register", "far", "near", "refused", "free", "ordered", "physical", "context")

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


class Ground:
    """A card, a container on it, and a survivor with a context."""

    #: So many are looked at; who starts takes the first free one.
    RECORDS = 16

    def __init__(self, folder: Path) -> None:
        build.build(["emu"])
        root = folder / "root"
        (uuid,) = driver_root.make(
            root, [CardSpec(profile="a100-80gb", count=1)], budget_bytes=64 * MIB
        )
        (folder / "c").mkdir()
        device = RegionDevice(uuid=uuid, memory_limit_bytes=CAP)
        region = make_region(folder / "c", "cache", RegionConstant(devices=(device,)))
        library = harness.shim()
        self.box = Container(
            library=library,
            driver=root / "driver",
            environment={
                **harness.preload_of(library, sanitized=False),
                "LD_LIBRARY_PATH": str(root / "driver"),
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
            },
            region=region,
        )
        self.context = card.read(root / "cards" / uuid / "state").description.context_bytes
        flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ldl")
        program = harness.compile_(Path("steps"), [harness.HERE / "steps.c"], *flags)
        self.survivor = self.box.start()
        self._stepping = subprocess.Popen(
            [program],
            env={**self.box.environment, **self.box.base()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._stepping.pid, signal.SIGKILL)
        self._stepping.communicate(timeout=harness.DEADLINE)
        with self.survivor:
            pass

    def step(self, command: str) -> str:
        assert self._stepping.stdin is not None and self._stepping.stdout is not None
        self._stepping.stdin.write(command + "\n")
        self._stepping.stdin.flush()
        return self._stepping.stdout.readline().strip()

    def probe(self) -> list[int]:
        """Near its limit the survivor takes the lock that the dead may have held."""
        most = CAP - self.context
        found: list[int] = self.survivor(
            f"(lambda a: [a[0], free(a[1]) if a[0] == 0 else -1, info()[1]])(alloc({most}))"
        )
        return found

    def records(self) -> dict[int, int]:
        """What each record that is in use counts, by pid, whether its process lives or not."""
        assert self.box.region is not None
        size = ctypes.sizeof(layout.ProcessRecord)
        with self.box.region.open("rb") as file:
            file.seek(layout.EXT_OFFSET + layout.Extension.records.offset)
            data = file.read(size * self.RECORDS)
        return {
            record.pid: sum(
                use.context_bytes + use.module_bytes + use.buffer_bytes for use in record.use
            )
            for record in (layout.ProcessRecord * self.RECORDS).from_buffer_copy(data)
            if record.generation % 2
        }


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(tmp_path_factory.mktemp("steps"))
    try:
        assert made.survivor("context()") == 0
        if made.step("stop far 0") == NOT_TRACED:
            pytest.skip("no process may be traced here")
        yield made
    finally:
        made.close()


def spread(count: int, most: int) -> list[int]:
    """Return `most` of `count` points, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_instruction(ground: Ground, call: str) -> None:
    """D9, D10: nothing is held, no record is shared, nothing of the dead is counted."""
    instructions, stops = map(int, ground.step(f"trace {call}").split())
    assert instructions > 200 and stops >= 2, "the call was not made"
    free = CAP - ground.context
    points = [f"at {call} {n}" for n in spread(instructions, POINTS)]
    points += [f"stop {call} {n}" for n in spread(stops, POINTS)]
    killed = 0
    for point in points:
        killed += ground.step(point) == "killed"
        assert ground.probe() == [0, 0, free], point
        assert ground.records() == {ground.survivor.pid: ground.context}, point
    # Some instructions are those of a slow machine only: what was seen is believed for 10 ms.
    assert killed > len(points) // 2, "it was through before it was killed"


def test_control_a_victim_that_lives_is_counted(ground: Ground) -> None:
    """What the probe sees of a process that was not killed."""
    with ground.box.start() as other:
        assert other("context()") == 0
        assert other("alloc(GIB)")[0] == 0
        assert ground.probe() == [2, -1, CAP - 2 * ground.context - GIB]
        assert ground.records()[other.pid] == ground.context + GIB
