"""The instants between a look at the others and a charge, which no race hits for certain."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import GIB, GRANULE, MIB

NEAR = 256 * MIB


class Cost(ctypes.Structure):
    _fields_ = (("large", ctypes.c_uint64), ("small", ctypes.c_uint64))


class Event(ctypes.Structure):
    _fields_ = (("what", ctypes.c_char), ("value", ctypes.c_uint64))


class Account:
    """account.c in this process, between others whose figures are a script."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.play(GIB, [0])
        library.vgpu_account_forget()
        library.vgpu_account_open(True)
        self.reading = ctypes.c_bool.in_dll(library, "reading")
        self.unexplained = ctypes.c_uint64.in_dll(library, "unexplained_bytes")
        self.reading.value, self.unexplained.value = False, 0
        for name in ("vgpu_charge", "vgpu_charge_far", "vgpu_exchange"):
            getattr(library, name).restype = ctypes.c_bool

    def play(self, limit: int, others: Sequence[int]) -> None:
        array = (ctypes.c_uint64 * len(others))(*others)
        self.library.play(ctypes.c_uint64(limit), array, len(others))

    def events(self) -> list[tuple[str, int]]:
        count = ctypes.c_int.in_dll(self.library, "event_count").value
        events = (Event * 256).in_dll(self.library, "events")
        return [(e.what.decode(), e.value) for e in events[:count]]

    def published(self) -> list[int]:
        return [value for what, value in self.events() if what == "P"]

    def far(self, size: int) -> bool:
        return bool(self.library.vgpu_charge_far(0, Cost(size, 0), ctypes.c_uint64(NEAR)))

    def charge(self, size: int) -> bool:
        return bool(self.library.vgpu_charge(0, Cost(size, 0)))

    def exchange(self, charged: int, actual: int) -> bool:
        return bool(self.library.vgpu_exchange(0, Cost(charged, 0), Cost(actual, 0)))


@pytest.fixture
def account() -> Account:
    shim = harness.NATIVE / "shim"
    library = harness.compile_(
        Path("account.so"),
        [shim / "account.c", harness.HERE / "account" / "shared.c"],
        *harness.STRICT,
        "-O1",
        "-shared",
        f"-I{shim}",
        f"-I{harness.NATIVE / 'include'}",
    )
    return Account(ctypes.CDLL(str(library)))


def test_far_from_the_limit_nobody_is_waited_for(account: Account) -> None:
    account.play(GIB, [100 * MIB])
    assert account.far(10 * MIB)
    assert account.published() == [10 * MIB]
    assert not {"L", "J"} & {what for what, _ in account.events()}
    order = [what for what, _ in account.events()]
    assert "O" in order[order.index("P") :]  # the others are looked at after it was published


@pytest.mark.parametrize("others", [700 * MIB, 759 * MIB, GIB, 2**64 - 1])
def test_near_the_limit_nothing_is_charged(account: Account, others: int) -> None:
    account.play(GIB, [others])
    assert not account.far(100 * MIB)
    assert account.published() == []
    account.play(GIB, [700 * MIB - NEAR])  # control: as much farther away it is
    assert account.far(100 * MIB)


def test_two_at_the_same_instant_do_not_both_pass(account: Account) -> None:
    """The other one published its figure after our first look."""
    assert account.far(100 * MIB)
    account.play(GIB, [0, 600 * MIB])
    assert not account.far(400 * MIB)
    assert account.published() == [500 * MIB, 100 * MIB]
    account.play(GIB, [0, 500 * MIB])  # control: both fit
    assert account.far(400 * MIB)
    assert account.published() == [500 * MIB]


def test_who_holds_the_lock_looks_again_too(account: Account) -> None:
    """Another one, far from the limit and so without the lock, came in between."""
    account.play(GIB, [0, 600 * MIB])
    assert not account.charge(800 * MIB)
    assert account.published() == [800 * MIB, 0]
    assert [what for what, _ in account.events()][-1] == "U"


def test_who_holds_the_lock_tries_again_when_the_other_gave_way(account: Account) -> None:
    account.play(GIB, [0, 600 * MIB, 0])
    assert account.charge(800 * MIB)
    assert account.published() == [800 * MIB, 0, 800 * MIB]


def test_one_that_always_comes_in_between_holds_nobody_for_ever(account: Account) -> None:
    account.play(GIB, [0, 600 * MIB] * 32)
    assert not account.charge(800 * MIB)
    assert account.published()[-1] == 0


def test_a_correction_gives_nothing_away_before_it_is_decided(account: Account) -> None:
    assert account.far(400 * MIB)
    account.play(GIB, [600 * MIB])
    assert not account.exchange(400 * MIB, 500 * MIB)
    assert min(account.published(), default=400 * MIB) == 400 * MIB
    account.play(GIB, [600 * MIB])
    assert account.exchange(400 * MIB, 420 * MIB)
    assert account.exchange(420 * MIB, 2 * GRANULE)
    assert account.published() == [420 * MIB, 2 * GRANULE]


def test_what_the_card_counts_beyond_us_is_counted_without_the_lock(account: Account) -> None:
    account.unexplained.value = 700 * MIB
    assert not account.far(100 * MIB)
    account.unexplained.value = 0
    assert account.far(100 * MIB)


def test_a_new_reading_is_taken_under_the_lock(account: Account) -> None:
    account.reading.value = True
    assert not account.far(MIB)
    assert account.charge(MIB)
    assert account.far(MIB)
