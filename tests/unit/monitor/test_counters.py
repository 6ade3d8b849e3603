"""Rates of the regions' counters."""

from __future__ import annotations

from typing import Any

from testbed.native.region import RegionConstant, RegionDevice, StateFlag
from testbed.native.region_watch import Counters
from testbed.stack.monitor.counters import CounterBook, Rates

WHO = ("u", "main")
SECOND = 1_000_000_000


def counters(**given: Any) -> Counters:
    zero = (0, 0)
    names = ("denied", "launches", "granted_ns", "waited_ns", "waited_queue_ns")
    values = dict.fromkeys((*names, "waited_priority_ns"), zero) | given
    devices = (
        RegionDevice(uuid="GPU-a", memory_limit_bytes=1),
        RegionDevice(uuid="GPU-b", memory_limit_bytes=1),
    )
    return Counters(constant=RegionConstant(devices=devices), state=StateFlag(0), **values)


def book(*looks: tuple[int, Counters]) -> CounterBook:
    found = CounterBook(keep_s=10)
    for second, look in looks:
        found.add(second * SECOND, {WHO: look})
    return found


def test_rates_over_the_span() -> None:
    found = book(
        (0, counters()),
        (1, counters(launches=(5, 7))),
        (
            6,
            counters(
                launches=(5, 1007),
                waited_ns=(0, 2 * SECOND),
                waited_queue_ns=(0, SECOND),
                waited_priority_ns=(0, SECOND // 2),
                denied=(0, 3),
            ),
        ),
    )
    assert found.rates(WHO, 1, 5.0) == Rates(
        launches_per_s=200, waited=0.4, waited_queue=0.2, waited_priority=0.1, denied=3
    )
    assert found.rates(WHO, 0, 5.0) == Rates(
        launches_per_s=0, waited=0, waited_queue=0, waited_priority=0, denied=0
    )


def test_a_span_shorter_than_the_looks_takes_the_last_two() -> None:
    found = book((0, counters()), (5, counters(launches=(1, 1))), (6, counters(launches=(3, 1))))
    rates = found.rates(WHO, 0, 0.1)
    assert rates is not None and rates.launches_per_s == 2


def test_no_rates_before_two_looks_and_none_of_another() -> None:
    found = book((0, counters()))
    assert found.rates(WHO, 0, 5) is None and found.last(WHO) == counters()
    assert found.rates(("v", "main"), 0, 5) is None and found.last(("v", "main")) is None
    found.add(SECOND, {WHO: counters()})
    assert found.rates(WHO, 2, 5) is None, "no such device"


def test_a_region_made_anew_begins_at_zero() -> None:
    found = book((0, counters(launches=(900, 0))), (1, counters(launches=(4, 0))))
    assert found.rates(WHO, 0, 5) is None
    found.add(2 * SECOND, {WHO: counters(launches=(10, 0))})
    rates = found.rates(WHO, 0, 5)
    assert rates is not None and rates.launches_per_s == 6


def test_what_is_gone_is_forgotten_and_what_is_old_too() -> None:
    found = book(*((second, counters(launches=(second, 0))) for second in range(100)))
    assert len(found._seen[WHO]) == 11
    found.add(100 * SECOND, {})
    assert found.last(WHO) is None
