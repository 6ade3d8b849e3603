"""Of which interval a sample of NVML's is, where the library itself asks for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import shim_harness as harness

SIXTH, SECOND = 166_667, 1_000_000


def intervals(*gaps_us: int) -> list[int]:
    program = harness.compile_(
        Path("gaps"),
        [harness.HERE / "interval" / "gaps.c"],
        *(*harness.STRICT, "-O1"),
        *(f"-I{harness.NATIVE / 'shim'}", f"-I{harness.NATIVE / 'include'}"),
    )
    command = [str(program), *map(str, gaps_us)]
    told = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
    return [int(line) for line in told.stdout.split()]


def test_samples_that_follow_each_other_are_of_what_lies_between() -> None:
    assert intervals(SIXTH, SIXTH - 9_000, SIXTH + 9_000) == [SIXTH, SIXTH - 9_000, SIXTH + 9_000]


@pytest.mark.parametrize("missed", [1, 5, 20])
def test_samples_that_nobody_asked_for_are_no_part_of_the_next_one(missed: int) -> None:
    """A program that launched nothing for a while: it would have used the card all that time."""
    assert intervals(SIXTH, SIXTH, (missed + 1) * SIXTH, SIXTH) == [SIXTH] * 4


def test_a_driver_that_samples_once_a_second() -> None:
    assert intervals(SECOND, SECOND, 3 * SECOND) == [SECOND] * 3


def test_two_stamps_of_one_sample_tell_no_period() -> None:
    assert intervals(SIXTH, 3, SIXTH) == [SIXTH, 3, SIXTH]


def test_a_pause_before_the_first_sample_is_no_period() -> None:
    assert intervals(4 * SECOND, SIXTH) == [SECOND, SIXTH]
