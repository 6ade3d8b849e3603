"""What holds for a launch is copied while another thread renews it, at every step of the copy."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import shim_harness as harness


def wrong(*flags: str) -> int:
    """Return how many copies were of two regimes, or not of the one that they said."""
    program = harness.compile_(
        Path("steps"),
        [harness.HERE / "regime" / "steps.c"],
        *(*harness.STRICT, "-O1", *flags),
        *(f"-I{harness.NATIVE / 'shim'}", f"-I{harness.NATIVE / 'include'}"),
    )
    done = subprocess.run([str(program)], capture_output=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["copies"] > 60
    return int(found["wrong"])


def test_no_copy_is_of_two_regimes() -> None:
    assert wrong() == 0
    assert wrong("-fsanitize=address,undefined") == 0


def test_control_a_copy_that_does_not_look_whether_it_was_overtaken() -> None:
    assert wrong("-DWITHOUT_NUMBER") > 10
