"""The pods' first process: alone in its namespace, it must end and it must reap."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEADLINE_S = 120.0
RT_SIGTIMEDWAIT = 128


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@contextmanager
def namespace(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command as pid 1 of a PID namespace that ends with the test."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    process = subprocess.Popen(["unshare", *user, "--pid", "--fork", "--kill-child", *command])
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_on_signals_as_pid_one(pause_program: Path, number: signal.Signals) -> None:
    with namespace([str(pause_program)]) as process:
        wait_for(lambda: len(children(process.pid)) == 1, "unshare has forked")
        (pid,) = children(process.pid)
        wait_for(lambda: name(pid) == "vgpu-pause", "pause runs")
        # Before that call the kernel would drop a signal to pid 1 that it does not handle.
        wait_for(lambda: in_call(pid, RT_SIGTIMEDWAIT), "signals are waited for")
        os.kill(pid, number)
        assert process.wait(DEADLINE_S) == 0


def in_call(pid: int, number: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == str(number)


def test_it_reaps_orphans_as_pid_one(pause_program: Path, tmp_path: Path) -> None:
    # The shell leaves a child behind and becomes pause: the child's death reaches pause.
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with namespace(["sh", "-c", f"cat {gate} & exec {pause_program}"]) as process:
        wait_for(lambda: len(children(process.pid)) == 1, "unshare has forked")
        (pid,) = children(process.pid)
        wait_for(lambda: name(pid) == "vgpu-pause", "pause runs")
        assert children(pid), "the orphan waits at the gate"
        with gate.open("w"):
            pass
        wait_for(lambda: children(pid) == [], "the orphan is reaped")
        assert process.poll() is None, "pause still runs"


def test_it_is_static(pause_program: Path) -> None:
    assert b"ld-linux" not in pause_program.read_bytes()
