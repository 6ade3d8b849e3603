"""As many processes of one container as a region has room for."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import GIB, MIB, OUT_OF_MEMORY, Container

from testbed.native import region_layout as layout

ALL = layout.MAX_PROCESSES
HALF = ALL // 2
BYTES = 2 * MIB
OWN_CONTEXT = 4 * MIB
EACH = OWN_CONTEXT + BYTES
CAP = 12 * GIB

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


@pytest.fixture(params=["plain"])
def sanitized() -> bool:
    """Not under the address sanitizer: a thousand shadows of the memory do not fit here."""
    return False


class Crowd:
    def __init__(self, container: Container) -> None:
        flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ldl")
        program = harness.compile_(Path("crowd"), [harness.HERE / "crowd.c"], *flags)
        self._process = subprocess.Popen(
            [program, str(BYTES)],
            env={**container.environment, **container.base()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def __call__(self, command: str) -> list[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=harness.DEADLINE)


@pytest.fixture
def box(container: Callable[..., Container]) -> Container:
    return container(CAP, FAKE_CONTEXT=str(OWN_CONTEXT))


@pytest.fixture
def crowd(box: Container) -> Iterator[Crowd]:
    made = Crowd(box)
    yield made
    made.close()


def test_a_thousand_and_twenty_four(box: Container, crowd: Crowd) -> None:
    """Each has a record of its own, the next one none; half of them killed make room again."""
    granted, refused, first = map(int, crowd(f"start {ALL}"))
    assert (granted, refused) == (ALL, 0)
    assert first in (0, ALL), "some are pid 1 of their namespaces and others not"
    processes = box.view().processes
    assert sorted(process.record for process in processes) == list(range(ALL))
    assert box.used() == ALL * EACH

    with box.start() as newcomer:
        assert newcomer("context()") == OUT_OF_MEMORY
        assert newcomer("create(2 * MIB)")[0] == OUT_OF_MEMORY
        assert newcomer("nvml_memory()") == [CAP, CAP - ALL * EACH, ALL * EACH]
        assert box.used() == ALL * EACH

        assert crowd(f"kill {HALF}") == ["killed"]
        assert len(box.view().processes) == HALF
        assert newcomer("context()") == 0
        used = HALF * EACH + OWN_CONTEXT
        assert newcomer("info()") == [0, CAP - used, CAP]
        assert newcomer("alloc(GIB)")[0] == 0
        assert box.used() == used + GIB

        assert list(map(int, crowd(f"start {HALF - 1}")[:2])) == [HALF - 1, 0]
        assert len(box.view().processes) == ALL
        assert crowd("end") == [str(ALL - 1)]
        assert box.used() == OWN_CONTEXT + GIB
        _, errors = newcomer.finish()
    (line,) = errors.splitlines()
    assert "all 1024 process records of the container are taken" in line
