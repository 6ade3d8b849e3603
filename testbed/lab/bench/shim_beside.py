"""Runs of ``testbed bench shim`` side by side, each on a card of its own.

A second of a card's time costs the host little where kernels are long. Which runs may go at
one time follows from what their tenants take of the processors; those of very short kernels,
which a late wake-up would distort, go one at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from testbed.lab.bench.shim_rows import Run

#: Kernels shorter than this are measured alone, µs.
SHORT_US = 100
#: What the host spends on a kernel, µs: on one that is synchronised or not held back, and on
#: one of a limited queue. Measured on 2 cores of a Xeon: 19 % of a core for synchronised
#: kernels of 100 µs, 3 % of 1 ms, 1 % of 5 ms; queued and limited 1 % of 100 µs.
_HOST_US, _HOST_QUEUED_US = 25.0, 2.5
#: How much of the processors may be planned with; the rest is the feeders' and the machine's.
_PLANNED = 0.5
#: Runs for each processor, and at most.
_EACH, MOST = 4, 16

Card = TypeVar("Card")
Got = TypeVar("Got")


@dataclass(frozen=True, slots=True)
class Taken(Generic[Got]):
    """A run that has ended.

    Attributes:
        number: Which of the wanted it is.
        beside: How many others were under way at one time with it, at most.
        got: What it gave.
    """

    number: int
    beside: int
    got: Got


def usual(processors: float) -> int:
    """Return how many runs go at one time if nothing else is said."""
    return max(1, min(MOST, int(processors * _EACH)))


def load_of(run: Run, *, limited: bool) -> float:
    """Return how many processors the tenants of a run take, about."""
    queued = limited and not run.sync
    each = (_HOST_QUEUED_US if queued else _HOST_US) / run.kernel_us
    return len(run.limits) * min(1.0, each)


def may_begin(run: Run, under_way: Sequence[Run], *, limited: bool, processors: float) -> bool:
    """Tell whether a run may begin beside those that are under way."""
    if not under_way:
        return True
    every = (run, *under_way)
    if any(each.kernel_us < SHORT_US for each in every):
        return False
    return sum(load_of(each, limited=limited) for each in every) <= processors * _PLANNED


def side_by_side(
    wanted: Sequence[Run],
    cards: Sequence[Card],
    measure: Callable[[Run, Card], Got],
    *,
    limited: bool,
    processors: float,
    stopping: threading.Event,
) -> Iterator[Taken[Got]]:
    """Measure runs, as many at one time as there are cards and as the processors carry.

    Args:
        wanted: The runs; those that may go beside others are begun first.
        cards: Where one run at a time can be measured.
        measure: Measures a run on a card; called in threads.
        limited: Whether tenants are held to their limits.
        processors: How many the machine has.
        stopping: Set when one run failed or the caller gave up: the others are to end.

    Yields:
        Each as it ends, in no order.

    Raises:
        TestbedError: what a run raised; the others have ended by then.
    """
    order = sorted(range(len(wanted)), key=lambda number: wanted[number].kernel_us < SHORT_US)
    free = list(cards)
    under_way: dict[Future[Got], tuple[int, Card]] = {}
    beside: dict[int, int] = {}
    with ThreadPoolExecutor(len(cards)) as pool, _ended(stopping):
        while order or under_way:
            running = [wanted[number] for number, _ in under_way.values()]
            fitting = (
                number
                for number in order
                if free
                and may_begin(wanted[number], running, limited=limited, processors=processors)
            )
            if (number := next(fitting, None)) is not None:
                order.remove(number)
                card = free.pop()
                under_way[pool.submit(measure, wanted[number], card)] = number, card
                for each, _ in under_way.values():
                    beside[each] = max(beside.get(each, 0), len(under_way) - 1)
                continue
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                number, card = under_way.pop(future)
                free.append(card)
                yield Taken(number, beside[number], future.result())


@contextlib.contextmanager
def _ended(stopping: threading.Event) -> Iterator[None]:
    """Tell those who still run that nobody waits for them, when it ends otherwise than well."""
    try:
        yield
    except BaseException:
        stopping.set()
        raise
