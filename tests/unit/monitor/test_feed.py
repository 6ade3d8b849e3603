"""What is written into the regions of a node's containers, and into no other file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from testbed.native import region_layout as layout
from testbed.native.region import RegionConstant, RegionDevice, make_region
from testbed.native.region_watch import RegionWatch
from testbed.stack.codec import region_name
from testbed.stack.devices import CardReading, ProcessBytes
from testbed.stack.monitor.feed import Feed
from testbed.stack.monitor.regions import region_path
from testbed.stack.monitor.utilization import Window
from testbed.stack.monitor.whose import NOBODY, Owner

A, B = ("aaaa", "main"), ("bbbb", "main")
SECOND = 1_000_000_000
OWNERS = {
    7: Owner(pod_uid="aaaa", container="main"),
    8: Owner(pod_uid="aaaa", container="main"),
    9: Owner(pod_uid="bbbb", container="main"),
    10: NOBODY,
}
READING = CardReading(
    uuid="GPU-y",
    processes=tuple(ProcessBytes(pid=pid, bytes=pid * 100) for pid in (7, 8, 9, 10)),
)


def made(hook: Path, who: tuple[str, str], *, priority: int = 1) -> Path:
    folder = region_path(hook, who).parent
    folder.mkdir(parents=True)
    devices = tuple(RegionDevice(uuid=f"GPU-{c}", memory_limit_bytes=1) for c in "xy")
    constant = RegionConstant(
        devices=devices, pod_uid=who[0], container_name=who[1], priority=priority
    )
    return make_region(folder, region_name(*who), constant)


def window(stamp: int = 5 * SECOND, **pct: int) -> Window:
    return Window(
        stamp_ns=stamp,
        interval_ns=SECOND // 6,
        sm_pct={int(pid[1:]): value for pid, value in pct.items()},
        card_pct=None,
    )


def entry(region: Path, device: int) -> tuple[int, ...]:
    data = layout.Extension.from_buffer_copy(region.read_bytes(), layout.EXT_OFFSET)
    found = data.feedback[device]
    return (
        found.stamp_ns,
        found.own_util_pm,
        found.other_util_pm,
        found.own_bytes,
        found.other_bytes,
        found.interval_ns,
    )


def hami(region: Path) -> tuple[int, int]:
    found = layout.HamiRegion.from_buffer_copy(region.read_bytes())
    return found.utilization_switch, found.recent_kernel


def test_each_container_is_told_its_own_and_the_others(tmp_path: Path) -> None:
    a, b = made(tmp_path, A), made(tmp_path, B)
    feed = Feed(tmp_path)
    assert set(feed.look([A, B])) == {A, B}
    assert feed.feed("GPU-y", window(p7=20, p8=5, p9=60, p10=10), OWNERS, READING) == 2
    assert entry(a, 1) == (5 * SECOND, 250, 700, 1500, 1900, SECOND // 6)
    assert entry(b, 1) == (5 * SECOND, 600, 350, 900, 2500, SECOND // 6)
    assert entry(a, 0) == (0,) * 6, "the other card has no sample"


def test_bytes_of_a_reading(tmp_path: Path) -> None:
    a, b = made(tmp_path, A), made(tmp_path, B)
    feed = Feed(tmp_path)
    feed.look([A, B])
    assert feed.feed_bytes("GPU-y", OWNERS, READING, 11) == 2
    assert entry(a, 1) == (0, 0, 0, 1500, 1900, 0)
    assert entry(b, 1) == (0, 0, 0, 900, 2500, 0)
    region = layout.Extension.from_buffer_copy(a.read_bytes(), layout.EXT_OFFSET)
    assert [region.feedback[i].bytes_ns for i in range(2)] == [0, 11]


def test_an_idle_card_is_told_as_such(tmp_path: Path) -> None:
    a = made(tmp_path, A)
    feed = Feed(tmp_path)
    feed.look([A])
    feed.feed("GPU-x", window(), {}, None)
    assert entry(a, 0) == (5 * SECOND, 0, 0, 0, 0, SECOND // 6)


def test_containers_without_a_region_are_waited_for(tmp_path: Path) -> None:
    """N8: the folder may not be there yet."""
    feed = Feed(tmp_path / "hook")
    assert feed.look([A]) == {} and feed.mirror(0) == {}
    assert feed.feed("GPU-y", window(p7=1), OWNERS, READING) == 0
    made(tmp_path / "hook", A)
    assert set(feed.look([A])) == {A}
    assert feed.look([]) == {}, "and the pod has gone"
    assert feed.feed("GPU-y", window(p7=1), OWNERS, READING) == 0


def test_hamis_fields_follow_who_was_busy_of_late(tmp_path: Path) -> None:
    a, b = made(tmp_path, A, priority=0), made(tmp_path, B)
    feed = Feed(tmp_path)
    feed.look([A, B])
    feed.feed("GPU-y", window(p9=60), OWNERS, READING)
    feed.mirror(5 * SECOND)
    assert (hami(a), hami(b)) == ((0, 0), (0, 2)), "the low one is alone"
    feed.feed("GPU-y", window(6 * SECOND, p7=10, p9=60), OWNERS, READING)
    fields = feed.mirror(6 * SECOND)
    assert (hami(a), hami(b)) == ((0, 2), (1, -1)), "paused by the high one"
    assert fields[B].paused
    feed.mirror(9 * SECOND)
    assert (hami(a), hami(b)) == ((0, 0), (0, 0)), "both idle for two seconds"


def test_a_tenants_link_is_not_followed_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = made(tmp_path, A), made(tmp_path, B)
    feed = Feed(tmp_path)
    feed.look([A, B])
    a.unlink()
    a.symlink_to(b)
    before = b.read_bytes()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert feed.feed("GPU-y", window(p7=20), {7: OWNERS[7]}, READING) == 1
            feed.look([A, B])
    assert [r.message for r in caplog.records if "aaaa" in r.message] != []
    assert len(caplog.records) == 1
    assert entry(b, 1)[1:3] == (0, 200), "b was told about itself alone"
    assert len(before) == b.stat().st_size


def test_a_copy_of_anothers_region_gets_nothing(tmp_path: Path) -> None:
    a, b = made(tmp_path, A), made(tmp_path, B)
    a.write_bytes(b.read_bytes())
    feed = Feed(tmp_path)
    assert set(feed.look([A, B])) == {B}
    assert feed.feed("GPU-y", window(p7=20), OWNERS, READING) == 1


def test_the_plugins_name_is_the_monitors(tmp_path: Path) -> None:
    path = region_path(tmp_path, A)
    assert path.parent == tmp_path / "containers/aaaa_main"
    assert path.name == f"{region_name('aaaa', 'main')}.cache"
    assert os.fspath(path) == os.fspath(RegionWatch(path)._path)


def test_without_processes_samples_only_a_lone_container_is_told(tmp_path: Path) -> None:
    a, b = made(tmp_path, A), made(tmp_path, B)
    feed = Feed(tmp_path)
    feed.look([A, B])
    by_card = Window(
        stamp_ns=9 * SECOND, interval_ns=SECOND // 6, sm_pct={}, card_pct=80, by_process=False
    )
    assert feed.feed("GPU-y", by_card, OWNERS, READING) == 0
    assert entry(a, 1) == entry(b, 1) == (0,) * 6
    alone = {7: OWNERS[7], 8: OWNERS[8]}
    assert feed.feed("GPU-y", by_card, alone, READING) == 2
    assert (entry(a, 1)[1:3], entry(b, 1)[1:3]) == ((800, 0), (0, 800))
