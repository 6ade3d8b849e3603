"""What a program is told of its card by NVML, beyond sizes: its container's own, nobody else's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from shim_harness import GIB, MIB, Container, Program

from testbed.native.region import set_memory
from testbed.native.region_watch import Feedback, RegionWatch

Make = Callable[..., Container]
STRANGER = 1000001
INSUFFICIENT_SIZE = 7
#: Percent of time that the driver double calls the card busy.
CARD = 90

#: All that tells a program how large its card is and what is used of it: (total, used), or one.
STORY = (
    "[(info()[2], info()[2] - info()[1]), (total(), None), old(),"
    " tuple(nvml_memory()[::2]), (nvml_memory_v2()[0], nvml_memory_v2()[3]),"
    " (None, sum(held for _, held in processes()[2])),"
    " (None, sum(held for _, held in details()[2]))]"
)
OLD = """
def old():
    size, (free, whole) = c_uint(), (c_uint(), c_uint())
    assert cuda().cuDeviceTotalMem(byref(size), 0) == 0
    assert cuda().cuMemGetInfo(byref(free), byref(whole)) == 0
    assert size.value == whole.value
    return whole.value, whole.value - free.value
"""
FORKED = """
def told_by_a_child(work):
    import os
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            exec(work, globals())
            os.write(writer, repr({story}).encode())
        finally:
            os._exit(0)
    os.close(writer)
    told = os.read(reader, 65536)
    os.close(reader)
    os.waitpid(child, 0)
    return eval(told)
"""


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
def test_one_story(container: Make, nvml: str) -> None:
    """Whoever is asked, and whoever asks: two processes, a child of fork, under changed limits."""
    box = container(GIB, FAKE_NVML=nvml)
    assert box.region is not None

    def agree(told: list[list[int | None]], whole: int) -> None:
        totals = {total for total, _ in told} - {None}
        used = {used for _, used in told} - {None}
        assert (totals, used) == ({whole}, {box.used()}), told

    with box.start() as first, box.start() as second:
        for program in (first, second):
            program(OLD)
            program("context(); alloc(100 * MIB)")
        for whole in (GIB, GIB // 2, 2 * GIB):
            set_memory(box.region, {0: whole})
            agree(first(STORY), whole)
            agree(second(STORY), whole)
        if nvml == "own":
            return  # the double takes a child's memory for its parent's and its own
        first(FORKED.format(story=STORY))
        (own,) = {used for _, used in first(STORY)} - {None}
        grown = first("told_by_a_child('alloc(50 * MIB)')")
        assert {used for _, used in grown} - {None} == {own + 50 * MIB}
        assert {total for total, _ in grown} - {None} == {2 * GIB}
        agree(first(STORY), 2 * GIB)  # the child's went with it


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
