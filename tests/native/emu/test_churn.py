"""Processes that come, are stopped and are killed at any moment: the others' time goes on,
and what the card's book says stays possible."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from emu_harness import TIMEOUT_S, Emulation

from testbed.native import card

SECONDS = 4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("churn") / "churn"
    source = Path(__file__).with_name("churn.c")
    subprocess.run(
        ["cc", "-O1", str(source), "-ldl", "-o", str(made)], check=True, timeout=TIMEOUT_S
    )
    return made


def _start(emulation: Emulation, program: Path, seed: int, rounds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        emulation.command(str(program), str(seed), str(rounds)),
        env=emulation.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _slots(emulation: Emulation) -> list[int]:
    """Device time of each slot, over all processes that ever had it."""
    return card.read_granted(emulation.card() / "state")


def _granted(emulation: Emulation) -> tuple[int, int]:
    """Device time of all processes that ever were, and the time of the book."""
    return sum(_slots(emulation)), time.monotonic_ns()


@pytest.mark.parametrize("clock", ["slices", "sharing"])
def test_killed_at_any_moment(
    make_emulation: Callable[..., Emulation],
    monkeypatch: pytest.MonkeyPatch,
    program: Path,
    clock: str,
) -> None:
    monkeypatch.setenv("VGPU_EMU_CLOCK", clock)
    emulation = make_emulation()
    dice = random.Random(1)
    survivor = _start(emulation, program, 99, 0)
    victims = [_start(emulation, program, seed, 0) for seed in range(4)]
    stopped = _start(emulation, program, 50, 0)
    try:
        # Whoever is stopped while it begins holds the card's memory lock for ten seconds.
        end = time.monotonic() + TIMEOUT_S
        while sum(granted > 0 for granted in _slots(emulation)) < 2 + len(victims):
            assert time.monotonic() < end, "not all of them work"
            time.sleep(0.01)
        stopped.send_signal(signal.SIGSTOP)
        # Read before the book is: a card that is always busy grants exactly what passes.
        began = time.monotonic_ns()
        before, _ = _granted(emulation)
        deadline = time.monotonic() + SECONDS
        seed = 100
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.0, 0.05))
            victim = victims.pop(dice.randrange(len(victims)))
            victim.kill()
            output, _ = victim.communicate(timeout=TIMEOUT_S)
            assert victim.returncode == -signal.SIGKILL, output
            victims.append(_start(emulation, program, seed, 0))
            seed += 1
            total, now = _granted(emulation)
            assert before <= total <= before + (now - began)
        # They did work; on a busy machine starting them took most of the time.
        end = time.monotonic() + TIMEOUT_S
        while total <= before + 100_000_000:
            assert time.monotonic() < end, f"{(total - before) / 1e6:.0f} ms were granted"
            time.sleep(0.05)
            total, now = _granted(emulation)
            assert total <= before + (now - began)
        assert survivor.poll() is None, survivor.communicate()[0]
        # Who starts now is served, whatever state the dead left.
        last = _start(emulation, program, 7, 20)
        output, _ = last.communicate(timeout=TIMEOUT_S)
        assert last.returncode == 0, output
    finally:
        stopped.send_signal(signal.SIGCONT)
        for process in (survivor, stopped, *victims):
            process.kill()
            process.communicate(timeout=TIMEOUT_S)
    assert len(emulation.state().slots) <= card.MAX_SLOTS


def test_a_stopped_process_stops_nobody(emulation: Emulation, program: Path) -> None:
    stopped = _start(emulation, program, 1, 0)
    try:
        for seed in range(10):
            time.sleep(0.02)
            stopped.send_signal(signal.SIGSTOP)
            other = _start(emulation, program, seed, 10)
            output, _ = other.communicate(timeout=TIMEOUT_S)
            assert other.returncode == 0, output
            stopped.send_signal(signal.SIGCONT)
    finally:
        stopped.kill()
        stopped.communicate(timeout=TIMEOUT_S)
