"""The plugin's files on the node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import DeployError
from testbed.stack.model import PodKey, Share
from testbed.stack.plugin.answer import RegionPlan
from testbed.stack.plugin.store import install_library, mounted_folders, prepare_folder, sweep

UID = "11111111-2222-3333-4444-555555555555"


def plan(folder: Path) -> RegionPlan:
    return RegionPlan(
        folder=str(folder),
        cache_uuid="c1",
        shares=(Share(uuid="GPU-a", mem_mib=1, core_pct=1),),
        policy="default",
        priority=0,
        priority_floor_pct=0,
        oversubscribe=False,
        pod=PodKey(namespace="ns", name="p", uid=UID),
        container="main",
    )


def test_library_builds_lie_beside_each_other_and_are_never_written_again(tmp_path: Path) -> None:
    source = tmp_path / "libvgpu.so"
    source.write_bytes(b"one")
    first = install_library(tmp_path / "hook", source)
    installed = tmp_path / "hook/lib" / first / "libvgpu.so"
    inode = installed.stat().st_ino
    assert install_library(tmp_path / "hook", source) == first
    assert installed.stat().st_ino == inode
    source.write_bytes(b"two")
    second = install_library(tmp_path / "hook", source)
    assert second != first
    assert installed.read_bytes() == b"one"
    assert sorted(p.name for p in (tmp_path / "hook/lib").iterdir()) == sorted([first, second])
    preload = tmp_path / "hook/lib" / second / "ld.so.preload"
    assert preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert preload.stat().st_mode & 0o777 == 0o644
    assert installed.parent.stat().st_mode & 0o777 == 0o755


def test_library_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="cannot be installed"):
        install_library(tmp_path, tmp_path / "nothing")


def test_folder_is_open_to_any_user_whatever_the_umask(tmp_path: Path) -> None:
    made = []
    before = os.umask(0o077)
    try:
        prepare_folder(plan(tmp_path / "containers/x"), made.append)
    finally:
        os.umask(before)
    assert (tmp_path / "containers/x").stat().st_mode & 0o777 == 0o777
    assert len(made) == 1


def test_what_a_tenant_put_in_our_names_is_removed_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "containers/x"
    (folder / "driver").mkdir(parents=True)
    (folder / "libvgpu.so").touch()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (folder / "c1.cache").symlink_to(victim)
    (folder / "c1.cache.lock").mkdir()
    (folder / "region").symlink_to(victim)
    present: list[set[str]] = []
    prepare_folder(plan(folder), lambda _: present.append({p.name for p in folder.iterdir()}))
    assert present == [{"driver", "libvgpu.so"}], "the runtime's mount points stay"
    assert victim.read_text() == "kept"


def test_sweep_removes_folders_of_vanished_pods_with_mount_points_in_them(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    gone, kept, other = root / f"{UID}_main", root / "22222222-0000_x", root / "README"
    for folder in (gone, kept, other):
        (folder / "driver").mkdir(parents=True)
        (folder / "libvgpu.so").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (gone / "link").symlink_to(outside)
    later = gone.stat().st_mtime + 3600
    proc = tmp_path / "proc"
    proc.mkdir()
    assert sweep(tmp_path, {"22222222-0000"}, proc=proc, now=later) == (f"{UID}_main",)
    assert not gone.exists() and kept.exists() and other.exists() and outside.exists()


def test_sweep_leaves_the_young_and_the_mounted(tmp_path: Path) -> None:
    folder = tmp_path / "containers" / f"{UID}_main"
    folder.mkdir(parents=True)
    proc = tmp_path / "proc"
    (proc / "12").mkdir(parents=True)
    mounts = proc / "12/mountinfo"
    mounts.write_text("36 35 98:0 / / rw - ext4 /dev/x rw\n")
    assert sweep(tmp_path, set(), proc=proc, now=folder.stat().st_mtime + 1) == ()
    mounts.write_text(
        f"36 35 98:0 /lib/vgpu-testbed/containers/{UID}_main /usr/local/vgpu rw - ext4 /dev/x rw\n"
    )
    now = folder.stat().st_mtime
    assert sweep(tmp_path, set(), proc=proc, now=now + 3600) == ()
    mounts.write_text("36 35 98:0 / / rw - ext4 /dev/x rw\n")
    assert sweep(tmp_path, set(), proc=proc, now=now + 3600) == (f"{UID}_main",)


def test_sweep_before_there_is_a_folder(tmp_path: Path) -> None:
    assert sweep(tmp_path, set(), proc=tmp_path) == ()


def test_mounted_folders_survives_odd_lines(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/mountinfo").write_bytes(b"\n1 2\n1 2 3:4 /a/containers/n_x/y /t - -\n\xff\xfe\n")
    (tmp_path / "2").mkdir()
    (tmp_path / "self").mkdir()
    assert mounted_folders(tmp_path) == {"n_x"}
