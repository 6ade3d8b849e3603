"""The build: by part, kept by content, and clear when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.native import build

LISTS = """
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES C)
foreach(part IN LISTS VGPU_PARTS)
  add_subdirectory(${part})
endforeach()
"""
PART = """
add_library(NAME SHARED NAME.c)
install(TARGETS NAME LIBRARY DESTINATION lib)
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "native"
    (source / "include").mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(LISTS)
    for part in ("emu", "shim"):
        (source / part).mkdir()
        (source / part / "CMakeLists.txt").write_text(PART.replace("NAME", part))
        (source / part / f"{part}.c").write_text(f"int {part}(void) {{ return 1; }}\n")
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return source


def _no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(part: str, command: list[str]) -> None:
        raise AssertionError(f"{part} was compiled")

    monkeypatch.setattr(build, "_run", refuse)


def test_unchanged_is_kept(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = build.build()
    first = {path.name: path.stat().st_ino for path in lib.glob("*.so")}
    assert set(first) == {"libemu.so", "libshim.so"}
    _no_compiling(monkeypatch)
    build.build()
    assert {path.name: path.stat().st_ino for path in lib.glob("*.so")} == first
    # A lost file comes from the cache.
    (lib / "libemu.so").unlink()
    build.build()
    assert (lib / "libemu.so").exists()


def test_a_change_builds_its_part_only(tree: Path) -> None:
    lib = build.build()
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in lib.glob("*.so")}
    (tree / "emu" / "emu.c").write_text("int emu_2(void) { return 2; }\n")
    build.build()
    assert (lib / "libemu.so").read_bytes() != before["libemu.so"][1]
    assert (lib / "libemu.so").stat().st_ino != before["libemu.so"][0]  # never in place
    assert (lib / "libshim.so").stat().st_ino == before["libshim.so"][0]
    # A header counts for all.
    (tree / "include" / "card.h").write_text("/* new */\n")
    build.build()
    assert (lib / "libshim.so").stat().st_ino != before["libshim.so"][0]


def test_a_broken_part_stops_no_other(tree: Path) -> None:
    (tree / "shim" / "shim.c").write_text("int shim(void) { return missing; }\n")
    lib = build.build(["emu"])
    with pytest.raises(TestbedError, match="missing") as caught:
        build.build()
    assert "the native part shim could not be built" in caught.value.what
    assert [path.name for path in lib.glob("*.so")] == ["libemu.so"]
    assert not list((tree / "..").resolve().glob("cache/vgpu-testbed/native/shim-*"))


def test_command(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for said in ("… native part emu\n", ""):  # nothing where there is nothing to do
        assert build.main(["emu"]) == 0
        assert capsys.readouterr().err == said
    (tree / "emu" / "emu.c").write_text("nonsense\n")
    assert build.main(["emu"]) == 2
    assert "\nerror: the native part emu could not be built" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        build.main(["emo"])
    assert caught.value.code == 2
