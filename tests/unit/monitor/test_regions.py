"""Regions as a scrape reads them, whatever a tenant did to the folder."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

import pytest

from testbed.native import region_layout as layout
from testbed.native.region import RegionConstant, lock_path, make_region
from testbed.native.region import RegionDevice as NativeDevice
from testbed.stack.codec import region_name
from testbed.stack.monitor.regions import ContainerRegion, RegionProblem, regions_of

WHO = ("u1", "main")
NONE, BAD = RegionProblem(reason="no-region"), RegionProblem(reason="unreadable-region")


def made(hook: Path, who: tuple[str, str] = WHO, *, named: tuple[str, str] = WHO) -> Path:
    folder = hook / "containers" / f"{who[0]}_{who[1]}"
    folder.mkdir(parents=True, exist_ok=True)
    constant = RegionConstant(
        devices=(NativeDevice(uuid="GPU-a", memory_limit_bytes=1000),),
        pod_uid=named[0],
        container_name=named[1],
    )
    return make_region(folder, region_name(*who), constant)


def read(hook: Path) -> ContainerRegion | RegionProblem:
    return regions_of(hook, [WHO])[WHO]


def test_limits_of_a_container_that_has_not_begun(tmp_path: Path) -> None:
    made(tmp_path)
    region = read(tmp_path)
    assert isinstance(region, ContainerRegion)
    assert [(d.uuid, d.limit_bytes, d.used_bytes) for d in region.devices] == [("GPU-a", 1000, 0)]
    assert region.processes == 0


def test_a_living_process_counts(tmp_path: Path) -> None:
    """A record in use whose lock another process holds."""
    path = made(tmp_path)
    start = layout.EXT_OFFSET + layout.Extension.records.offset
    record = layout.ProcessRecord()
    record.generation, record.active_ns = 1, 77
    record.use[0].context_bytes, record.use[0].buffer_bytes = 100, 20
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(record), start)
        count = layout.EXT_OFFSET + layout.Extension.record_count.offset
        os.pwrite(file.fileno(), struct.pack("<I", 1), count)
    ready, wait = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lock = os.open(lock_path(path), os.O_RDWR)
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)
            os.write(ready[1], b"1")
            os.close(wait[1])
            os.read(wait[0], 1)  # until the test ends
        finally:
            os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"1"
        region = read(tmp_path)
        assert isinstance(region, ContainerRegion)
        assert region.processes == 1 and region.devices[0].used_bytes == 120
        assert (region.pids, region.last_kernel_ns) == (frozenset({child}), 77)
    finally:
        os.close(wait[1])
        os.waitpid(child, 0)
        for end in (*ready, wait[0]):
            os.close(end)
    region = read(tmp_path)
    assert isinstance(region, ContainerRegion)
    assert region.processes == 0 and region.devices[0].used_bytes == 0, "it has ended"


def test_no_folder_yet(tmp_path: Path) -> None:
    """N8."""
    assert read(tmp_path) == NONE
    (tmp_path / "containers/u1_main").mkdir(parents=True)
    assert read(tmp_path) == NONE


def test_damaged(tmp_path: Path) -> None:
    path = made(tmp_path)
    with path.open("r+b") as file:
        file.truncate(100)
    assert read(tmp_path) == BAD
    made(tmp_path)
    with path.open("r+b") as file:  # the limit, raised by the tenant
        offset = layout.EXT_OFFSET + layout.Extension.constant.offset
        file.seek(offset + layout.Constant.memory_limit.offset)
        file.write(b"\xff" * 8)
    assert read(tmp_path) == BAD


def test_another_containers_region(tmp_path: Path) -> None:
    made(tmp_path, named=("victim", "main"))
    assert read(tmp_path) == BAD


@pytest.mark.parametrize("end", [".cache", ".cache.lock"])
@pytest.mark.timeout(120)
def test_pipes_and_links_do_not_hold_the_scrape(tmp_path: Path, end: str) -> None:
    path = made(tmp_path).with_name(region_name(*WHO) + end)
    path.unlink()
    os.mkfifo(path)
    assert read(tmp_path) == NONE
    path.unlink()
    path.symlink_to("/dev/zero")
    assert read(tmp_path) == NONE


def test_files_of_a_tenant_are_not_even_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of a million files would hold the scrape."""
    made(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("the tenant's folder is listed")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    assert isinstance(read(tmp_path), ContainerRegion)
