"""The library's benchmark: which runs go at one time, and those that missed beside others."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from testbed.errors import InputError, TestbedError
from testbed.lab.bench import shim
from testbed.lab.bench.shim_accuracy import accuracy
from testbed.lab.bench.shim_beside import MOST, load_of, may_begin, side_by_side, usual
from testbed.lab.bench.shim_ground import Ground
from testbed.lab.bench.shim_rows import LIMITS, Run, Shares, runs
from testbed.lab.progress import QuietProgress

DEADLINE_S = 60.0


def lone(kernel_us: int, *, limit: int = 30, sync: bool = False) -> Run:
    return Run(limits=(limit,), kernel_us=kernel_us, sync=sync)


def test_what_may_go_at_one_time() -> None:
    long, short = lone(5_000), lone(5)
    assert may_begin(short, [], limited=True, processors=1)
    assert not may_begin(short, [long], limited=True, processors=64)
    assert not may_begin(long, [short], limited=True, processors=64)
    assert may_begin(long, [lone(5_000, sync=True)] * 7, limited=True, processors=2)
    busy = lone(100, sync=True)  # a quarter of a processor
    assert may_begin(busy, [busy] * 3, limited=True, processors=2)
    assert not may_begin(busy, [busy] * 4, limited=True, processors=2)


def test_what_a_run_takes() -> None:
    assert load_of(lone(5, sync=True), limited=True) == 1.0  # never more than it has threads
    assert load_of(lone(100), limited=True) < load_of(lone(100), limited=False)
    pair = Run(limits=(30, 70), kernel_us=5_000, sync=True)
    assert load_of(pair, limited=True) == pytest.approx(2 * load_of(pair.bare, limited=False) / 2)
    assert load_of(pair, limited=True) == 2 * load_of(lone(5_000, sync=True), limited=True)


def test_usual() -> None:
    assert usual(2) == 8 and usual(0.1) == 1 and usual(1000) == MOST


def test_all_cards_are_used_at_one_time() -> None:
    together = threading.Barrier(4)
    stopping = threading.Event()
    used: list[str] = []

    def measure(run: Run, card: str) -> int:
        together.wait(DEADLINE_S)  # breaks unless four are here
        used.append(card)
        return run.limits[0]

    wanted = [lone(5_000, limit=limit) for limit in (5, 10, 25, 30)]
    taken = list(
        side_by_side(wanted, list("abcd"), measure, limited=True, processors=2, stopping=stopping)
    )
    assert sorted(used) == list("abcd")
    assert {each.number: each.got for each in taken} == dict(enumerate((5, 10, 25, 30)))
    assert {each.beside for each in taken} == {3}
    assert not stopping.is_set()


def test_short_kernels_are_alone_and_every_run_is_made_once() -> None:
    wanted = runs((), (), (), quick=False)
    lock, under_way, seen = threading.Lock(), set[int](), list[Run]()

    def measure(run: Run, card: int) -> None:
        with lock:
            assert card not in under_way
            under_way.add(card)
            assert run.kernel_us > 5 or len(under_way) == 1
            seen.append(run)
        with lock:
            assert run.kernel_us > 5 or len(under_way) == 1
            under_way.remove(card)

    taken = list(
        side_by_side(
            wanted, range(8), measure, limited=True, processors=2, stopping=threading.Event()
        )
    )
    assert sorted(map(str, seen)) == sorted(map(str, wanted))
    assert sorted(each.number for each in taken) == list(range(len(wanted)))
    short = {each.beside for each in taken if wanted[each.number].kernel_us == 5}
    assert short == {0}


def test_a_failure_ends_the_others_and_is_what_is_told() -> None:
    stopping, begun = threading.Event(), threading.Barrier(2)

    def measure(run: Run, card: str) -> bool:
        begun.wait(DEADLINE_S)
        if run.limits == (5,):
            raise TestbedError("the first one failed")
        assert stopping.wait(DEADLINE_S)
        raise TestbedError("given up")

    wanted = [lone(5_000, limit=5), lone(5_000, limit=10)]
    with pytest.raises(TestbedError, match="the first one failed"):
        list(
            side_by_side(wanted, list("ab"), measure, limited=True, processors=2, stopping=stopping)
        )


class Place:
    """A card; whatever is measured at first is beside others, and off."""

    def __init__(self, met: threading.Barrier, seen: set[Run], *, always_off: bool) -> None:
        self._met, self._seen, self._always_off = met, seen, always_off

    def run(self, run: Run, *, seconds: float, library: bool, stopping: threading.Event) -> Shares:
        assert seconds > 0 and not stopping.is_set()
        if not library:
            return shares((100.0 / len(run.limits),) * len(run.limits))
        again = run in self._seen
        if not again:
            self._met.wait(DEADLINE_S)
            self._seen.add(run)
        off = 0.0 if again and not self._always_off else -4.0
        return shares(tuple(limit + off for limit in run.limits))


def shares(mean: tuple[float, ...]) -> Shares:
    return Shares(mean=mean, windows=tuple((each,) * 10 for each in mean), seconds=10.0)


@pytest.mark.parametrize("always_off", [False, True])
def test_what_missed_beside_others_is_measured_alone(always_off: bool) -> None:
    wanted = [lone(5_000, limit=limit) for limit in LIMITS[:3]]
    met, seen = threading.Barrier(3), set[Run]()
    places = cast("list[Ground]", [Place(met, seen, always_off=always_off) for _ in wanted])
    found = accuracy(places, QuietProgress(), wanted, seconds=10, clock="slices")
    assert [row.limit_pct for row in found.rows] == list(LIMITS[:3])
    for row in found.rows:
        assert row.beside == 0 and row.ok is not always_off
        assert row.earlier is not None and not row.earlier.ok and row.earlier.beside > 0


def test_how_many() -> None:
    with pytest.raises(InputError, match="at one time"):
        shim.Options(beside=MOST + 1)
    with pytest.raises(InputError, match="at one time"):
        shim.Options(beside=-1)
