"""What containers hold outside their cards."""

from __future__ import annotations

import pytest

from testbed.stack.monitor.regions import ContainerRegion, RegionDevice, RegionProblem
from testbed.stack.monitor.samples import Sample, Tick
from testbed.stack.monitor.swapped import SwapBook, swapped_bytes

WHO = ("u", "main")


def tick(time: float, *held: tuple[int, int | None]) -> Tick:
    """A look at a card: (bytes on it, bytes outside) of each process, and a stranger."""
    own = tuple(
        Sample(uuid="a", pid=n, pod_uid="u", container="main", bytes=on, swapped_bytes=outside)
        for n, (on, outside) in enumerate(held, 1)
    )
    stranger = Sample(uuid="a", pid=99, pod_uid="v", container="x", bytes=5, swapped_bytes=7)
    return Tick(time=time, samples=(*own, stranger))


def region(*used: int) -> ContainerRegion:
    devices = tuple(
        RegionDevice(
            uuid=str(n), limit_bytes=0, context_bytes=1, module_bytes=0, buffer_bytes=count - 1
        )
        for n, count in enumerate(used)
    )
    return ContainerRegion(devices=devices, processes=1)


def test_an_emulated_card_tells_it() -> None:
    assert swapped_bytes([tick(0, (10, 3), (10, 4))], WHO, "a") == 7
    assert swapped_bytes([tick(0, (10, 0))], WHO, "a") == 0
    assert swapped_bytes([tick(0, (10, 3))], ("v", "x"), "a") == 7


def test_nobody_knows_where_neither_card_nor_scaled_library_tells() -> None:
    assert swapped_bytes([tick(0, (10, None))], WHO, "a") is None
    assert swapped_bytes([tick(0)], WHO, "a") is None
    assert swapped_bytes([], WHO, "a", 5) is None


@pytest.mark.parametrize(
    ("ticks", "counted", "outside"),
    [
        ([tick(0, (70, None))], 100, 30),
        ([tick(0, (70, None))], 60, 0),  # freed: the card is read less often
        ([tick(0, (70, None)), tick(1, (20, None))], 70, 0),  # likewise, the other way round
        ([tick(0, (70, None)), tick(9, (20, None))], 70, 50),  # long ago counts for nothing
        ([tick(0)], 40, 40),
    ],
)
def test_by_library_and_nvml(ticks: list[Tick], counted: int, outside: int) -> None:
    assert swapped_bytes(ticks, WHO, "a", counted) == outside


def test_what_lies_on_the_host_by_itself_counts_too() -> None:
    """Physical memory that never was on the card: the card knows nothing of it."""
    assert swapped_bytes([tick(0, (70, 5))], WHO, "a", 100) == 30


def test_an_allocation_of_just_now_is_not_outside() -> None:
    book = SwapBook()
    assert book.counted(WHO, 0) is None
    book.look({WHO: region(10, 7)})
    assert book.counted(WHO, 0) is None, "one look may be half of an allocation"
    book.look({WHO: region(90, 7)})
    assert (book.counted(WHO, 0), book.counted(WHO, 1), book.counted(WHO, 2)) == (10, 7, None)
    book.look({WHO: region(90, 7)})
    assert book.counted(WHO, 0) == 90


def test_a_container_that_is_gone_or_spoiled_is_forgotten() -> None:
    book = SwapBook()
    book.look({WHO: region(10)})
    book.look({WHO: RegionProblem(reason="unreadable-region")})
    book.look({WHO: region(10)})
    assert book.counted(WHO, 0) is None
    book.look({})
    assert book.counted(WHO, 0) is None
