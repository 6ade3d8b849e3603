"""The throttle in real processes on emulated cards; the card's own book is the judge.

Shares are device time by the card's count (``busy_ns``) over a while, so they hold on a
machine that is busy: a tenant that the host does not schedule gets less than its limit,
never more. The exact bounds are those of ``test_throttle_model.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import shim_harness as harness

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.native import build, card, page
from testbed.native import region_layout as layout
from testbed.native.region import (
    Policy,
    RegionConstant,
    RegionDevice,
    RegionView,
    StateFlag,
    make_region,
    read_region,
    set_compute,
)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")

#: What a window of two to three seconds may show beyond the limit: the credit of 60 ms, a
#: batch at either end, and the host's timing of the two looks at the book.
ABOVE = 3.0
#: And below it, where the host has little time for the tenant.
BELOW = 8.0
#: How many windows may be looked at, on a machine that has little time for the tenants.
WINDOWS = 8
#: A look at the book that took longer says too little of when it was.
AT_ONCE_S = 0.01


class Tenant:
    """A running ``tenant.c``."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            _, errors = self.process.communicate(timeout=harness.DEADLINE)
            raise AssertionError(f"the tenant did not start: {errors}")

    def go(self) -> Self:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self

    def end(self) -> dict[str, Any]:
        output, errors = self.process.communicate("\n", timeout=harness.DEADLINE)
        assert self.process.returncode == 0, errors
        result: dict[str, Any] = json.loads(output)
        assert result["errno_kept"] and result["failed"] == 0 and result["end"] == 0
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=harness.DEADLINE)


class Card:
    """An emulated card, its page, and the containers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        (self.uuid,) = driver_root.make(
            self.root, [CardSpec(profile="a100-80gb", count=1)], budget_bytes=64 << 20
        )
        self.page = folder / "pages" / f"{self.uuid}.page"
        page.make_page(self.page, self.uuid)
        self.tenants: list[Tenant] = []
        self.program = harness.compile_(
            Path("tenant"),
            [harness.HERE / "tenant.c", self.root / "driver" / "libcuda.so.1"],
            *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"),
        )

    def container(
        self,
        name: str,
        limit: int,
        policy: Policy = Policy.FORCE,
        priority: int = 1,
        floor: int = 0,
    ) -> Path:
        """Make a container's region."""
        (self.folder / name).mkdir()
        device = RegionDevice(uuid=self.uuid, memory_limit_bytes=0, sm_limit_pct=limit)
        return make_region(
            self.folder / name,
            "cache",
            RegionConstant(
                devices=(device,),
                pod_uid=name,
                container_name="main",
                policy=policy,
                priority=priority,
                priority_floor_pct=floor,
            ),
        )

    def start(
        self,
        region: Path | None,
        *arguments: object,
        library: bool = True,
        sanitized: bool = False,
        **environment: str,
    ) -> Tenant:
        variables = {
            "LD_LIBRARY_PATH": str(self.root / "driver"),
            "VGPU_PAGE_FOLDER": str(self.page.parent),
            **environment,
        }
        if region is not None:
            variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(region)
        if library:
            shim = harness.shim(sanitized=sanitized)
            variables |= harness.preload_of(shim, sanitized=sanitized)
        tenant = Tenant([str(self.program), *map(str, arguments)], variables)
        self.tenants.append(tenant)
        return tenant

    def busy(self, *tenants: Tenant) -> list[int]:
        slots = {slot.pid: slot.busy_ns for slot in self.state().slots}
        return [slots.get(tenant.process.pid, 0) for tenant in tenants]

    def state(self) -> card.CardState:
        return card.read(self.root / "cards" / self.uuid / "state")

    def look(self, *tenants: Tenant) -> tuple[list[int], float]:
        """The book, and when that was: looked at again where the host came in between."""
        while True:
            before, found, after = time.monotonic(), self.busy(*tenants), time.monotonic()
            if after - before < AT_ONCE_S:
                return found, (before + after) / 2

    def shares(self, *tenants: Tenant, seconds: float = 2.5, warm: float = 1.5) -> list[float]:
        """Percent of device time of each over a while, by the card's own book."""
        time.sleep(warm)
        before, began = self.look(*tenants)
        time.sleep(seconds)
        after, ended = self.look(*tenants)
        return [(b - a) / (ended - began) / 1e7 for a, b in zip(before, after, strict=True)]

    def hold(
        self,
        tenants: Sequence[Tenant],
        limits: Sequence[float],
        *,
        seconds: float = 2.5,
        warm: float = 1.5,
    ) -> None:
        """Each has what its limit says.

        Never more, in any window. Less is the host's doing where it has no time for a
        tenant: then another window is looked at, and a limiter that gives too little
        gives it in all of them.
        """
        for _ in range(WINDOWS):
            found = self.shares(*tenants, seconds=seconds, warm=warm)
            both = list(zip(found, limits, strict=True))
            assert all(share <= limit + ABOVE for share, limit in both), both
            if all(share >= limit - BELOW for share, limit in both):
                return
            warm = 0
        raise AssertionError(f"in none of {WINDOWS} windows: {both}")

    def wait_for_share(self, tenant: Tenant, holds: Callable[[float], bool]) -> None:
        """Wait until a quarter of a second's share is as it should be."""
        deadline = time.monotonic() + 90
        while not holds(found := self.shares(tenant, seconds=0.25, warm=0)[0]):
            assert time.monotonic() < deadline, f"the share stays at {found:.1f}"


@pytest.fixture(params=["slices", "sharing"])
def clock(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Card]]:
    build.build(["emu"])
    made: list[Card] = []

    def make(clock: str) -> Card:
        monkeypatch.setenv("VGPU_EMU_CLOCK", clock)
        made.append(Card(tmp_path))
        return made[-1]

    yield make
    for each in made:
        for tenant in each.tenants:
            with contextlib.suppress(ProcessLookupError):
                tenant.kill()


@pytest.fixture
def a_card(new_card: Callable[[str], Card]) -> Card:
    return new_card("slices")


# --- alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (100, "deep", 1),
        (1000, "sync", 1),
        (1000, "ex", 1),
        (1000, "coop", 1),
        (1000, "thread", 1, 2),
        (1000, "deep", 4, 4),
        (500, "graph", 1),
        (0, "fill", 1),
    ],
    ids=lambda arguments: "-".join(map(str, arguments)),
)
def test_alone(a_card: Card, arguments: tuple[object, ...]) -> None:
    region = a_card.container("a", 30)
    tenant = a_card.start(region, *arguments).go()
    a_card.hold([tenant], [30])
    done = tenant.end()
    (use,) = read_region(region).compute
    assert use.launches == done["launches"]
    assert use.waited_ns > 1e7  # on a busy machine it has little to wait for
    # The library's reckoning is the card's, within a twentieth and what is not polled yet.
    assert use.granted_ns / 1e9 > 0.5


@pytest.mark.parametrize("pattern", ["deep", "graph"])
def test_control_alone(a_card: Card, pattern: str) -> None:
    """Without the library, and with it but without a limit, the same tenant has the card."""
    tenant = a_card.start(None, 1000, pattern, 1, library=False).go()
    assert a_card.shares(tenant, warm=0.5)[0] > 30 + 2 * ABOVE
    tenant.end()
    tenant = a_card.start(a_card.container("a", 0), 1000, pattern, 1).go()
    assert a_card.shares(tenant, warm=0.5)[0] > 30 + 2 * ABOVE
    tenant.end()


def test_by_environment_alone(a_card: Card) -> None:
    limits = {"CUDA_DEVICE_SM_LIMIT_0": "30", "GPU_CORE_UTILIZATION_POLICY": "force"}
    tenant = a_card.start(None, 1000, "deep", 1, **limits).go()
    a_card.hold([tenant], [30])
    tenant.end()


# --- beside a neighbour -------------------------------------------------------------------


def test_a_pair(new_card: Callable[[str], Card], clock: str) -> None:
    """NVML in the container tells apart whose time it was; there is no monitor here."""
    card_ = new_card(clock)
    regions = [card_.container("a", 30), card_.container("b", 50)]
    tenants = [card_.start(region, 1000, "deep", 1) for region in regions]
    for tenant in tenants:
        tenant.go()
    card_.hold(tenants, [30, 50], seconds=4, warm=3)
    assert len(page.read_page(card_.page).tenants) == 2
    for tenant in tenants:
        tenant.end()


@pytest.mark.parametrize("samples", ["one", "off"])
def test_a_pair_without_use_by_process(
    new_card: Callable[[str], Card], monkeypatch: pytest.MonkeyPatch, samples: str
) -> None:
    """A driver that gives each sample to one process tells nothing beside a neighbour: believed,
    the smaller one had more than its share (36 of 30 on an H200)."""
    monkeypatch.setenv("VGPU_EMU_PROCESS_SAMPLES", samples)
    card_ = new_card("slices")
    regions = [card_.container("a", 30), card_.container("b", 60)]
    tenants = [card_.start(region, 100, "deep", 1) for region in regions]
    for tenant in tenants:
        tenant.go()
    first, second = card_.shares(*tenants, seconds=4, warm=3)
    assert first <= 30 + ABOVE and second <= 60 + ABOVE, (first, second)
    assert min(first / 30, second / 60) > 0.4, (first, second)
    assert read_region(regions[0]).state & StateFlag.DEGRADED
    for tenant in tenants:
        tenant.end()


def test_control_of_a_pair(a_card: Card) -> None:
    tenants = [a_card.start(None, 1000, "deep", 1, library=False).go() for _ in range(2)]
    first, second = a_card.shares(*tenants)
    assert first > 30 + ABOVE and first == pytest.approx(second, rel=0.2)


def test_two_processes_of_a_container_share_its_limit(a_card: Card) -> None:
    region = a_card.container("a", 40)
    tenants = [a_card.start(region, 1000, "deep", 1).go() for _ in range(2)]
    for left in reversed(range(WINDOWS)):
        both = sum(a_card.shares(*tenants, seconds=4, warm=3))
        assert both <= 40 + ABOVE and (left or both >= 40 - BELOW), both
        if both >= 40 - BELOW:
            break
    launches = sum(tenant.end()["launches"] for tenant in tenants)
    assert read_region(region).compute[0].launches == launches


def test_feedback_of_the_monitor_is_taken(a_card: Card) -> None:
    """A monitor that tells twice of the true use halves what the container gets."""
    region = a_card.container("a", 40)
    other = a_card.start(a_card.container("b", 40), 1000, "deep", 1).go()
    tenant = a_card.start(region, 1000, "deep", 1).go()
    offset = layout.EXT_OFFSET + layout.Extension.feedback.offset
    before, last = a_card.busy(tenant), time.monotonic_ns()
    deadline = time.monotonic() + 6
    with region.open("r+b", buffering=0) as file:
        while time.monotonic() < deadline:
            time.sleep(0.1)
            busy, now = a_card.busy(tenant), time.monotonic_ns()
            part = 2 * (busy[0] - before[0]) / (now - last)
            fields = layout.Feedback(
                own_util_pm=min(1000, int(1000 * part)), other_util_pm=400, interval_ns=now - last
            )
            os.pwrite(file.fileno(), bytes(fields), offset)
            os.pwrite(file.fileno(), struct.pack("<Q", now), offset)
            before, last = busy, now
        (share,) = a_card.shares(tenant, seconds=0.8, warm=0)
    assert share < 30, share
    assert not read_region(region).state & StateFlag.DEGRADED
    other.end()
    tenant.end()


# --- policy and priority --------------------------------------------------------------------


def test_default_policy_is_free_alone_and_limited_beside(a_card: Card) -> None:
    region = a_card.container("a", 30, Policy.DEFAULT)
    tenant = a_card.start(region, 1000, "deep", 1).go()
    a_card.wait_for_share(tenant, lambda share: share > 80)
    other = a_card.start(a_card.container("b", 30), 1000, "deep", 1)
    other.go()
    a_card.wait_for_share(tenant, lambda share: share < 30 + 2 * ABOVE)
    other.kill()
    a_card.wait_for_share(tenant, lambda share: share > 80)
    tenant.end()


def test_a_low_priority_yields(a_card: Card) -> None:
    low = a_card.start(a_card.container("low", 0), 1000, "deep", 1).go()
    a_card.wait_for_share(low, lambda share: share > 80)
    high = a_card.start(a_card.container("high", 0, priority=0), 1000, "deep", 1).go()
    a_card.wait_for_share(low, lambda share: share < 2)
    high.kill()
    a_card.wait_for_share(low, lambda share: share > 80)
    low.end()
    assert read_region(a_card.folder / "low" / "cache.cache").compute[0].waited_priority_ns > 1e8


def test_a_low_priority_keeps_its_floor(a_card: Card) -> None:
    low = a_card.start(a_card.container("low", 0, floor=20), 1000, "deep", 1).go()
    a_card.wait_for_share(low, lambda share: share > 80)  # a thousand kernels are queued
    high = a_card.start(a_card.container("high", 0, priority=0), 1000, "deep", 1).go()
    a_card.wait_for_share(low, lambda share: share < 20 + ABOVE)
    a_card.hold([low], [20], seconds=4, warm=1)
    a_card.wait_for_share(high, lambda share: share > 40)
    high.end()
    low.end()


def test_a_change_of_the_limit(a_card: Card) -> None:
    region = a_card.container("a", 20)
    tenant = a_card.start(region, 1000, "deep", 1).go()
    a_card.hold([tenant], [20])
    set_compute(region, sm_limit_pct={0: 60})
    a_card.wait_for_share(tenant, lambda share: 50 < share < 60 + 2 * ABOVE)
    set_compute(region, policy=Policy.DISABLE)
    a_card.wait_for_share(tenant, lambda share: share > 80)
    set_compute(region, policy=Policy.FORCE, sm_limit_pct={0: 10})
    a_card.wait_for_share(tenant, lambda share: share < 10 + ABOVE)
    tenant.end()


# --- what must not hurt --------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [(100, "deep", 4, 4), (200, "sync", 1, 1, 500), (500, "graph", 1)]
)
def test_under_sanitizers(a_card: Card, arguments: tuple[object, ...]) -> None:
    """In turns with a neighbour, then below a priority: an error ends the tenant with one."""
    region = a_card.container("a", 30)
    tenants = [
        a_card.start(region, *arguments, sanitized=True).go(),
        a_card.start(a_card.container("b", 60), 1000, "deep", 1, sanitized=True).go(),
    ]
    a_card.shares(*tenants, seconds=1, warm=0)
    high = a_card.start(a_card.container("high", 0, priority=0), 1000, "deep", 1).go()
    a_card.wait_for_share(tenants[1], lambda share: share < 5)
    high.kill()
    a_card.wait_for_share(tenants[1], lambda share: share > 10)
    for tenant in tenants:
        assert tenant.end()["launches"] > 10


def test_a_page_that_is_cut_kills_nobody(a_card: Card) -> None:
    tenants = [
        a_card.start(a_card.container(name, 30), 1000, "deep", 1).go() for name in ("a", "b")
    ]
    a_card.shares(*tenants, seconds=0.5, warm=0.5)
    os.truncate(a_card.page, 0)
    shares = a_card.shares(*tenants, seconds=2, warm=3)
    assert all(share <= 30 + ABOVE for share in shares), shares
    for tenant in tenants:
        tenant.end()


@pytest.mark.parametrize("seed", range(3))
def test_scribbles_into_ledger_and_page_kill_nobody(a_card: Card, seed: int) -> None:
    region = a_card.container("a", 30)
    tenant = a_card.start(region, 1000, "deep", 1).go()
    a_card.shares(tenant, seconds=0.3, warm=0.3)
    noise = random.Random(seed)
    start = layout.EXT_OFFSET + layout.Extension.ledgers.offset
    paid = layout.EXT_OFFSET + layout.Extension.paid_until_ns.offset
    with region.open("r+b", buffering=0) as file, a_card.page.open("r+b", buffering=0) as shared:
        for _ in range(20):
            os.pwrite(file.fileno(), noise.randbytes(ctypes.sizeof(layout.Ledger)), start)
            os.pwrite(file.fileno(), noise.randbytes(8), paid)
            os.pwrite(shared.fileno(), noise.randbytes(4096 + 64 * page.TENANTS), 4096)
            time.sleep(0.02)
    # It recovers once nobody scribbles any more.
    with region.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes(ctypes.sizeof(layout.Ledger)), start)
        os.pwrite(file.fileno(), bytes(8), paid)
    a_card.wait_for_share(tenant, lambda share: 20 < share <= 30 + 2 * ABOVE)
    tenant.end()


def test_a_killed_tenant_leaves_nothing_behind(a_card: Card) -> None:
    region = a_card.container("a", 30)
    for _ in range(5):
        tenant = a_card.start(region, 1000, "deep", 1).go()
        a_card.shares(tenant, seconds=0.1, warm=0.1)
        tenant.kill()
    tenant = a_card.start(region, 1000, "deep", 1).go()
    a_card.hold([tenant], [30])
    assert len(page.read_page(a_card.page).tenants) == 1
    tenant.end()
    view: RegionView = read_region(region)
    assert view.processes == ()


def test_no_waiting_inside_a_capture(a_card: Card) -> None:
    """A graph of launches is captured in no time, whatever the budget, and charged as one."""
    region = a_card.container("a", 1)
    tenant = a_card.start(region, 200_000, "graph", 1)  # four captured kernels of 200 ms
    (use,) = read_region(region).compute
    assert (use.launches, use.waited_ns) == (0, 0)
    tenant.kill()
