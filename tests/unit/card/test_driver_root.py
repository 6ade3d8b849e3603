"""The driver root: files, modes, cards in order, and refusals."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import testbed.native
from testbed.card import CardSpec, driver_root
from testbed.errors import CodecError, InputError, MissingTool
from testbed.native import artifacts, card

MIB = 1 << 20


@pytest.fixture(autouse=True)
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of the built libraries: nothing here loads them."""
    folder = tmp_path / "native"
    folder.mkdir()
    for name in driver_root.LIBRARIES:
        (folder / name).write_bytes(name.encode())
    monkeypatch.setenv(artifacts.ENVIRONMENT, str(folder))
    monkeypatch.delenv(driver_root.BUDGET_VARIABLE, raising=False)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_modes(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        (uuid,) = driver_root.make(tmp_path / "root", [CardSpec()])
    finally:
        os.umask(before)
    root = tmp_path / "root"
    files = {str(path.relative_to(root)): mode(path) for path in root.rglob("*") if path.is_file()}
    assert files == {
        "EMULATION": 0o644,
        "driver/libcuda.so.1": 0o755,
        "driver/libnvidia-ml.so.1": 0o755,
        f"cards/{uuid}/state": 0o666,
        f"cards/{uuid}/cuda.lock": 0o666,
        f"cards/{uuid}/nvml.lock": 0o666,
    }
    assert {mode(path) for path in root.rglob("*") if path.is_dir()} == {0o755}
    assert "emulation" in (root / "EMULATION").read_text()


def test_cards_in_order(tmp_path: Path) -> None:
    uuids = driver_root.make(
        tmp_path / "root",
        [CardSpec(profile="a100-40gb", count=2), CardSpec(profile="a100-80gb")],
        budget_bytes=300 * MIB,
    )
    states = [card.read(tmp_path / "root" / "cards" / uuid / "state") for uuid in uuids]
    assert len(set(uuids)) == 3
    assert [s.description.uuid for s in states] == list(uuids)
    assert [s.description.index for s in states] == [0, 1, 2]
    assert [s.description.memory_bytes // MIB for s in states] == [40960, 40960, 81920]
    assert {s.description.budget_bytes for s in states} == {100 * MIB}
    assert len({s.description.pci_bus_id for s in states}) == 3
    assert all(s.slots == () for s in states)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("6G", 6 << 30), ("512MiB", 512 << 20), ("1.5g", 3 << 29), ("4096", 4096), ("2kb", 2048)],
)
def test_budget_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setenv(driver_root.BUDGET_VARIABLE, text)
    assert driver_root.default_budget() == expected


def test_budget_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(driver_root.BUDGET_VARIABLE, "plenty")
    with pytest.raises(InputError, match="plenty"):
        driver_root.default_budget()


def test_default_budget_is_bounded() -> None:
    assert 0 < driver_root.default_budget() <= 8 << 30


@pytest.mark.parametrize(
    "cards",
    [
        [],
        [CardSpec(count=0)],
        [CardSpec(count=-1), CardSpec(count=2)],
        [CardSpec(count=17)],
        [CardSpec(profile="no-such-card")],
    ],
)
def test_refusals_leave_nothing(tmp_path: Path, cards: list[CardSpec]) -> None:
    with pytest.raises(InputError):
        driver_root.make(tmp_path / "root", cards)
    assert not (tmp_path / "root").exists()


def test_refuses_a_root_in_use(tmp_path: Path) -> None:
    (uuid,) = driver_root.make(tmp_path / "root", [CardSpec()])
    with pytest.raises(InputError, match="exists already"):
        driver_root.make(tmp_path / "root", [CardSpec()])
    assert card.read(tmp_path / "root/cards" / uuid / "state").description.uuid == uuid


def test_without_a_build(tmp_path: Path, native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in native.iterdir():
        path.unlink()
    monkeypatch.setattr(testbed.native, "__path__", [])
    with pytest.raises(MissingTool, match=r"libcuda\.so\.1 is not built") as caught:
        driver_root.make(tmp_path / "root", [CardSpec()])
    assert "testbed.native.build" in caught.value.hint


def test_reading_what_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"x" * 100)
    with pytest.raises(CodecError, match="too few"):
        card.read(path)
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(CodecError, match="no card state"):
        card.read(path)


def test_faults_are_counted(tmp_path: Path) -> None:
    (uuid,) = driver_root.make(tmp_path / "root", [CardSpec()])
    path = tmp_path / "root/cards" / uuid / "state"
    card.raise_xid(path, 31)
    card.raise_xid(path, 79, fallen_off=True)
    state = card.read(path)
    assert (state.xid, state.xid_count) == (79, 2)
    assert state.description.uuid == uuid
