"""The containers' library cache."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.lab.images import ldcache
from testbed.lab.progress import QuietProgress

QUIET = QuietProgress()


def library(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["cc", "-shared", f"-Wl,-soname,{name}", "-x", "c", "/dev/null", "-o", folder / name],
        check=True,
        timeout=240,
    )
    return folder / name


def test_our_folders_come_first_and_only_lent_ones_follow(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.conf").write_text("# comment\n/usr/lib/special\n/usr/local/lib\n/opt/x\n")
    (tmp_path / "d/b.conf").write_text("/lib/other # why\n/usr/libexec\n/usr/lib64/y\n")
    config = tmp_path / "ld.so.conf"
    config.write_text("include d/*.conf\n/usr/lib/last\ninclude /none/*.conf\n")
    lines = ldcache.configuration(("standins",), config).splitlines()
    assert lines[:2] == ["/usr/local/vgpu/driver", "/opt/testbed/pytorch/standins"]
    assert lines[2:6] == ["/usr/lib/special", "/lib/other", "/usr/lib64/y", "/usr/lib/last"]
    assert set(lines[6:]) <= set(ldcache._SYSTEM)
    assert len(set(lines)) == len(lines)


def test_libraries_are_found_where_containers_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    driver = [library(tmp_path, "libcuda.so.1")]
    environment = tmp_path / "environment"
    library(environment / "standins", "libcudart.so.13")
    found = ldcache.prepare(QUIET, driver, environment, ("standins",))
    text = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", found], check=True, capture_output=True, text=True
    ).stdout
    places = dict(line.strip().split(" => ") for line in text.splitlines()[1:] if "=>" in line)
    by_name = {name.split()[0]: path for name, path in places.items()}
    assert by_name["libcuda.so.1"] == "/usr/local/vgpu/driver/libcuda.so.1"
    assert by_name["libcudart.so.13"] == "/opt/testbed/pytorch/standins/libcudart.so.13"
    assert "libc.so.6" in by_name
    assert not [path for path in by_name.values() if path.startswith("/usr/local/lib")]
    assert not Path("/usr/local/vgpu/driver").exists(), "the host is as it was"
    assert ldcache.prepare(QUIET, driver, environment, ("standins",)) == found
