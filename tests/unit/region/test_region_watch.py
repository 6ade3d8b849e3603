"""Counters and feedback of a region that its tenant may have tampered with."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

import pytest

from testbed.errors import CodecError
from testbed.native import region_layout as layout
from testbed.native.region import RegionConstant, RegionDevice, StateFlag, make_region
from testbed.native.region_watch import Feedback, RegionWatch

GIVEN = Feedback(
    stamp_ns=5_000_000_000,
    interval_ns=166_666_667,
    own_util_pm=301,
    other_util_pm=650,
    own_bytes=1 << 30,
    other_bytes=2 << 30,
)


@pytest.fixture
def region(tmp_path: Path) -> Path:
    devices = tuple(RegionDevice(uuid=f"GPU-{i}", memory_limit_bytes=1 << 20) for i in range(2))
    return make_region(tmp_path, "c", RegionConstant(devices=devices, pod_uid="u"))


def put(region: Path, offset: int, content: bytes) -> None:
    with region.open("r+b") as file:
        os.pwrite(file.fileno(), content, offset)


def extension(region: Path) -> layout.Extension:
    return layout.Extension.from_buffer_copy(region.read_bytes(), layout.EXT_OFFSET)


def test_feedback_lands_in_its_device_and_nowhere_else(region: Path) -> None:
    before = region.read_bytes()
    RegionWatch(region).feed(1, GIVEN)
    entry = extension(region).feedback[1]
    assert {name: getattr(entry, name) for name in Feedback.__dataclass_fields__} == {
        name: getattr(GIVEN, name) for name in Feedback.__dataclass_fields__
    }
    start = layout.EXT_OFFSET + layout.Extension.feedback.offset + ctypes.sizeof(layout.Feedback)
    after = region.read_bytes()
    assert before[:start] == after[:start]
    assert (
        before[start + ctypes.sizeof(layout.Feedback) :]
        == after[start + ctypes.sizeof(layout.Feedback) :]
    )
    with pytest.raises(ValueError, match="device 16"):
        RegionWatch(region).feed(layout.MAX_DEVICES, GIVEN)


def test_stamp_is_taken_back_before_the_figures_change(
    region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that comes in between sees that the entry is unfinished."""
    watch = RegionWatch(region)
    watch.feed(0, GIVEN)
    seen: list[int] = []
    write = os.pwrite

    def noted(file: int, content: bytes, offset: int) -> int:
        done = write(file, content, offset)
        seen.append(extension(region).feedback[0].stamp_ns)
        return done

    monkeypatch.setattr(os, "pwrite", noted)
    watch.feed(0, GIVEN)
    assert seen == [0, GIVEN.stamp_ns]


def test_bytes_alone_leave_the_figures_of_use_alone(region: Path) -> None:
    watch = RegionWatch(region)
    watch.feed(0, GIVEN)
    watch.feed_bytes(0, own=7, other=8, stamp_ns=9)
    entry = extension(region).feedback[0]
    assert (entry.own_bytes, entry.other_bytes, entry.bytes_ns) == (7, 8, 9)
    assert (entry.stamp_ns, entry.own_util_pm) == (GIVEN.stamp_ns, GIVEN.own_util_pm)
    watch.feed(0, GIVEN)
    assert extension(region).feedback[0].bytes_ns == 9, "no new reading"
    with pytest.raises(ValueError, match="device 16"):
        watch.feed_bytes(layout.MAX_DEVICES, own=0, other=0, stamp_ns=1)


def test_hamis_fields(region: Path) -> None:
    RegionWatch(region).mirror(utilization_switch=1, recent_kernel=-1)
    hami = layout.HamiRegion.from_buffer_copy(region.read_bytes())
    assert (hami.utilization_switch, hami.recent_kernel, hami.priority) == (1, -1, 1)
    assert hami.magic == layout.HAMI_MAGIC


def test_counters(region: Path) -> None:
    watch = RegionWatch(region)
    assert (watch.counters().denied, watch.counters().waited_ns) == ((0, 0), (0, 0))
    base = layout.EXT_OFFSET
    put(region, base + layout.Extension.denied.offset, struct.pack("<QQQ", 3, 4, 99))
    put(region, base + layout.Extension.waited_ns.offset, struct.pack("<QQQ", 5, 6, 99))
    put(region, base + layout.Extension.state_flags.offset, struct.pack("<I", 0xFFFFFFFF))
    found = watch.counters()
    assert (found.denied, found.waited_ns) == ((3, 4), (5, 6))
    for number, name in enumerate(
        ("launches", "granted_ns", "waited_queue_ns", "waited_priority_ns")
    ):
        field = getattr(layout.Extension, name)
        put(region, base + field.offset, struct.pack("<QQ", 100 + number, 200 + number))
        assert getattr(watch.counters(), name) == (100 + number, 200 + number)
    assert found.state == StateFlag.DEGRADED | StateFlag.NO_REGION, "unknown bits are dropped"
    assert [device.uuid for device in found.constant.devices] == ["GPU-0", "GPU-1"]


def test_a_raised_limit_is_noticed_also_after_a_good_look(region: Path) -> None:
    watch = RegionWatch(region)
    watch.counters()
    inside = layout.Extension.constant.offset + layout.Constant.memory_limit.offset
    put(region, layout.EXT_OFFSET + inside, b"\xff" * 8)
    with pytest.raises(CodecError, match="checksum"):
        watch.counters()
    with pytest.raises(CodecError, match="checksum"):
        watch.counters()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("trick", ["link", "pipe", "cut", "gone", "folder"])
def test_what_a_tenant_puts_in_its_place_is_neither_followed_nor_written(
    region: Path, tmp_path: Path, trick: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * layout.REGION_BYTES)
    if trick == "cut":
        os.truncate(region, 4096)
    else:
        region.unlink()
    if trick == "link":
        region.symlink_to(victim)
    elif trick == "pipe":
        os.mkfifo(region)
    elif trick == "folder":
        region.mkdir()
    watch = RegionWatch(region)
    for call in (
        watch.counters,
        lambda: watch.feed(0, GIVEN),
        lambda: watch.mirror(utilization_switch=1, recent_kernel=1),
    ):
        with pytest.raises(CodecError):
            call()
    assert victim.read_bytes() == b"x" * layout.REGION_BYTES
    if trick == "cut":
        assert region.stat().st_size == 4096
