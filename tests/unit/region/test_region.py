from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import CodecError, InputError
from testbed.native import region_layout as layout
from testbed.native.region import (
    ComputeUse,
    Policy,
    RegionConstant,
    RegionDevice,
    checksum,
    lock_path,
    make_region,
    read_region,
    set_compute,
    set_memory,
)

GIB = 1 << 30
UUID = "GPU-00000000-0000-4000-8000-000000000001"
CONSTANT = RegionConstant(
    devices=(
        RegionDevice(uuid=UUID, memory_limit_bytes=30 * GIB, sm_limit_pct=50),
        RegionDevice(uuid=UUID[:-1] + "2", memory_limit_bytes=0),
    ),
    pod_uid="8f5e",
    pod_namespace="team-a",
    pod_name="a",
    container_name="main",
    policy=Policy.FORCE,
    priority=0,
    oversubscribe=True,
)


@pytest.fixture
def region(tmp_path: Path) -> Path:
    return make_region(tmp_path, "cache-1", CONSTANT)


def test_what_is_made_is_read_back(region: Path) -> None:
    view = read_region(region)
    assert view.constant == CONSTANT
    assert view.processes == ()
    assert view.denied == (0, 0)
    assert [use.total_bytes for use in view.used] == [0, 0]


def test_names_modes_and_link(region: Path) -> None:
    assert region.name == "cache-1.cache"
    assert region.stat().st_mode & 0o777 == 0o666
    assert lock_path(region).name == "cache-1.cache.lock"
    assert lock_path(region).stat().st_mode & 0o777 == 0o666
    assert (region.parent / "region").readlink() == Path("cache-1.cache")
    assert sorted(path.name for path in region.parent.iterdir()) == [
        "cache-1.cache",
        "cache-1.cache.lock",
        "region",
    ]


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        path = make_region(tmp_path, "c", CONSTANT)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666
    assert lock_path(path).stat().st_mode & 0o777 == 0o666


def test_hamis_part_is_filled(region: Path) -> None:
    hami = layout.HamiRegion.from_buffer_copy(region.read_bytes())
    assert (hami.magic, hami.major, hami.minor) == (19920718, 1, 2)
    assert hami.device_count == 2
    assert hami.uuids[0].value.decode() == UUID
    assert hami.memory_limit[0] == 30 * GIB
    assert hami.sm_limit[0] == 50
    assert hami.priority == 0


def test_file_is_sparse(region: Path) -> None:
    assert region.stat().st_size == layout.REGION_BYTES
    assert region.stat().st_blocks * 512 < 256 * 1024


def test_making_again_replaces(region: Path) -> None:
    other = RegionConstant(devices=(RegionDevice(uuid=UUID, memory_limit_bytes=GIB),))
    with region.open("rb") as old:
        assert make_region(region.parent, "cache-1", other) == region
        assert os.fstat(old.fileno()).st_ino != region.stat().st_ino
    assert read_region(region).constant == other


@pytest.mark.parametrize(
    ("offset", "content", "why"),
    [
        (layout.EXT_OFFSET, b"\0" * 8, "magic"),
        (layout.EXT_OFFSET + 8, struct.pack("<I", 9), "version"),
        (layout.EXT_OFFSET + 12, struct.pack("<I", 9), "version"),
        (
            layout.EXT_OFFSET
            + layout.Extension.constant.offset
            + layout.Constant.memory_limit.offset,
            struct.pack("<Q", 1 << 60),
            "checksum",
        ),
    ],
)
def test_a_changed_region_is_refused(region: Path, offset: int, content: bytes, why: str) -> None:
    with region.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    with pytest.raises(CodecError, match=why) as caught:
        read_region(region)
    assert caught.value.hint


def test_a_consistent_but_impossible_count_is_refused(region: Path) -> None:
    start = layout.EXT_OFFSET + layout.Extension.constant.offset
    content = bytearray(region.read_bytes()[start : start + ctypes.sizeof(layout.Constant)])
    content[:4] = struct.pack("<I", 17)
    with region.open("r+b") as file:
        file.seek(start)
        file.write(content)
        file.seek(layout.EXT_OFFSET + layout.Extension.checksum.offset)
        file.write(struct.pack("<Q", checksum(bytes(content))))
    with pytest.raises(CodecError, match="17 devices"):
        read_region(region)


def test_missing_and_cut_files_are_refused(tmp_path: Path, region: Path) -> None:
    with pytest.raises(CodecError, match="No such file"):
        read_region(tmp_path / "none.cache")
    os.truncate(region, layout.HAMI_BYTES)
    with pytest.raises(CodecError, match="too short"):
        read_region(region)


@pytest.mark.parametrize(
    "constant",
    [
        RegionConstant(devices=()),
        RegionConstant(devices=(RegionDevice(uuid=UUID, memory_limit_bytes=1),) * 17),
        RegionConstant(devices=(RegionDevice(uuid="", memory_limit_bytes=1),)),
        RegionConstant(devices=(RegionDevice(uuid=UUID, memory_limit_bytes=-1),)),
        RegionConstant(
            devices=(RegionDevice(uuid=UUID, memory_limit_bytes=1),), pod_name="x" * 256
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, constant: RegionConstant) -> None:
    with pytest.raises(InputError):
        make_region(tmp_path, "c", constant)
    assert not (tmp_path / "c.cache").exists()


# A process that writes record 1 as the library does, and holds its lock.
_OWNER = """
import fcntl, os, struct, sys
region, lock, base = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock = os.open(lock, os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)
with open(region, "r+b") as file:
    file.seek(base); file.write(struct.pack("<QiIQ", 3, 1, 0, 77))
    file.seek(base + 64); file.write(struct.pack("<QQQ", 400, 20, 1000))
print("ready", flush=True)
sys.stdin.readline()
"""


def test_only_living_processes_count(region: Path) -> None:
    records = layout.EXT_OFFSET + layout.Extension.records.offset
    size = ctypes.sizeof(layout.ProcessRecord)
    with region.open("r+b") as file:
        file.seek(layout.EXT_OFFSET + layout.Extension.record_count.offset)
        file.write(struct.pack("<I", 2))
        file.seek(layout.EXT_OFFSET + layout.Extension.denied.offset)
        file.write(struct.pack("<Q", 5))
        file.seek(records)  # record 0: in use, but nobody holds its lock
        file.write(struct.pack("<Qi", 1, 9))
        file.seek(records + 64)
        file.write(struct.pack("<Q", 1 << 40))
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(region), str(lock_path(region)), str(records + size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        view = read_region(region)
        assert [process.record for process in view.processes] == [1]
        assert view.processes[0].owner_pid == owner.pid
        assert view.processes[0].started_ns == 77
        assert view.used[0].total_bytes == 1420
        assert view.used[1].total_bytes == 0
        assert view.denied == (5, 0)
    finally:
        owner.kill()
        owner.communicate(timeout=120)
    assert read_region(region).processes == ()


def test_a_record_count_beyond_the_table_is_cut(region: Path) -> None:
    with region.open("r+b") as file:
        file.seek(layout.EXT_OFFSET + layout.Extension.record_count.offset)
        file.write(struct.pack("<I", 0xFFFFFFFF))
    assert read_region(region).processes == ()


def test_without_a_lock_file_nobody_lives(region: Path) -> None:
    lock_path(region).unlink()
    assert read_region(region).processes == ()


@pytest.mark.parametrize("what", ["pipe", "folder", "link to a pipe"])
def test_whatever_a_tenant_puts_in_its_place_never_blocks_the_reader(
    tmp_path: Path, region: Path, what: str
) -> None:
    region.unlink()
    if what == "folder":
        region.mkdir()
    elif what == "pipe":
        os.mkfifo(region)
    else:
        os.mkfifo(tmp_path / "pipe")
        region.symlink_to(tmp_path / "pipe")
    with pytest.raises(CodecError, match="not a file"):
        read_region(region)


def test_a_pipe_as_lock_file_never_blocks_the_reader(region: Path) -> None:
    lock_path(region).unlink()
    os.mkfifo(lock_path(region))
    assert read_region(region).processes == ()


def test_compute_limits_of_a_running_container(region: Path) -> None:
    after = set_compute(region, sm_limit_pct={0: 30, 1: 75}, policy=Policy.DEFAULT, priority=1)
    assert read_region(region).constant == after
    assert [device.sm_limit_pct for device in after.devices] == [30, 75]
    assert after.devices[0].memory_limit_bytes == 30 * GIB
    hami = layout.HamiRegion.from_buffer_copy(region.read_bytes())
    assert list(hami.sm_limit)[:2] == [30, 75]
    assert hami.priority == 1
    with pytest.raises(InputError):
        set_compute(region, sm_limit_pct={2: 30})
    with pytest.raises(InputError):
        set_compute(region, sm_limit_pct={0: -1})
    assert read_region(region).constant == after


def test_memory_limits_of_a_running_container(region: Path) -> None:
    before = read_region(region).constant
    after = set_memory(region, {1: 5 * GIB})
    assert read_region(region).constant == after
    assert [device.memory_limit_bytes for device in after.devices][1] == 5 * GIB
    assert after.devices[0] == before.devices[0]
    hami = layout.HamiRegion.from_buffer_copy(region.read_bytes())
    assert list(hami.memory_limit)[:2] == [before.devices[0].memory_limit_bytes, 5 * GIB]
    for wrong in ({2: GIB}, {0: -1}):
        with pytest.raises(InputError):
            set_memory(region, wrong)
    assert read_region(region).constant == after


def test_compute_counters_are_read(region: Path) -> None:
    with region.open("r+b") as file:
        for name, value in (("launches", 7), ("waited_ns", 50), ("waited_queue_ns", 20)):
            file.seek(layout.EXT_OFFSET + getattr(layout.Extension, name).offset + 8)
            file.write(struct.pack("<Q", value))
    first, second = read_region(region).compute
    assert first == ComputeUse()
    assert second == ComputeUse(launches=7, waited_budget_ns=30, waited_queue_ns=20)
    assert second.waited_ns == 50
