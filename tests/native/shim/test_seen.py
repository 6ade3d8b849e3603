"""What a program is told of its card by NVML, beyond sizes: its container's own, nobody else's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from shim_harness import GIB, MIB, Container, Program

from testbed.native.region_watch import Feedback, RegionWatch

Make = Callable[..., Container]
STRANGER = 1000001
INSUFFICIENT_SIZE = 7
#: Percent of time that the driver double calls the card busy.
CARD = 90


def test_who_draws_is_the_containers_own(container: Make) -> None:
    with container(GIB).start() as program:
        program("context()")
        assert program("graphics()") == [0, 0, []]
    with container(GIB, FAKE_DRAWS="1").start() as program:
        program("context()")
        assert program("graphics()") == [0, 1, [[program.pid, 3 * MIB]]]
        assert program("graphics(0)") == [INSUFFICIENT_SIZE, 1, []]


def test_control_of_who_draws(container: Make) -> None:
    with container(GIB).without_library().start() as program:
        assert program("graphics()") == [0, 1, [[STRANGER, 5 * MIB]]]


@pytest.mark.parametrize("nvml", ["own", "foreign"])
def test_details_are_the_containers_own(container: Make, nvml: str) -> None:
    """As the list of who computes: also where NVML knows nobody by our pids."""
    with container(GIB, FAKE_NVML=nvml).start() as program:
        assert program("details()") == [0, 0, []]
        assert program("context()") == 0
        (_, _, listed) = program("processes()")
        assert [pid for pid, _ in listed] == [program.pid]
        assert program("details()") == [0, 1, listed]
        assert program("details(0, 0)") == [INSUFFICIENT_SIZE, 1, []]
        assert program("details(1)") == [0, 0, []]


def test_who_is_accounted_is_the_containers_own(container: Make) -> None:
    with container(GIB).start() as program:
        program("context()")
        assert program("accounted()") == [0, [program.pid]]
        assert program("accounted(0)") == [INSUFFICIENT_SIZE, 1]


def test_control_of_details(container: Make) -> None:
    with container(GIB).without_library().start() as program:
        program("context()")
        assert [STRANGER, 5 * MIB] in program("details()")[2]
        assert STRANGER in program("accounted()")[1]


def feed(box: Container, own_pm: int, age_s: float = 0.0) -> None:
    """Say what the monitor saw a while ago."""
    assert box.region is not None
    given = Feedback(
        stamp_ns=time.monotonic_ns() - int(age_s * 1e9),
        interval_ns=200_000_000,
        own_util_pm=own_pm,
        other_util_pm=600,
        own_bytes=0,
        other_bytes=0,
    )
    RegionWatch(box.region).feed(0, given)


def fed(box: Container, program: Program, own_pm: int) -> list[int]:
    """Say what the monitor saw just now, and return what the program is told.

    What is older than two seconds is not believed: a machine that stalls gets other chances.
    """
    found: list[int] = []
    for _ in range(10):
        feed(box, own_pm)
        found = program("rates()")
        if found[1] != CARD:
            break
    return found


def test_busy_is_what_the_container_does(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        assert program("rates()") == [0, CARD, 40], "nobody has said anything yet"
        for own_pm, percent in ((304, 30), (306, 31), (0, 0), (1000, 100)):
            # The memory's traffic is the card's: nobody tells whose it is.
            assert fed(gibibyte, program, own_pm) == [0, percent, 40]


@pytest.mark.parametrize(("own_pm", "age_s"), [(300, 10.0), (300, -10.0), (4000, 0.0)])
def test_what_is_old_or_impossible_is_not_believed(
    gibibyte: Container, own_pm: int, age_s: float
) -> None:
    with gibibyte.start() as program:
        program("context()")
        feed(gibibyte, own_pm, age_s)
        assert program("rates()") == [0, CARD, 40]


def test_control_of_busy(gibibyte: Container) -> None:
    feed(gibibyte, 300)
    with gibibyte.without_library().start() as program:
        assert program("rates()") == [0, CARD, 40]


def test_a_program_that_only_asks(gibibyte: Container) -> None:
    """Such as nvidia-smi: it has no context, and holds nothing."""
    with gibibyte.start() as worker, gibibyte.start() as asking:
        worker("context()")
        worker("alloc(100 * MIB)")
        assert fed(gibibyte, asking, 250)[1] == 25
        assert [pid for pid, _ in asking("processes()")[2]] == [worker.pid]
        assert asking("nvml_memory()")[2] == gibibyte.used()
        assert worker.pid != os.getpid()
