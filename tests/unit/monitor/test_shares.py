"""Share of a card's time, by its own accounting or by NVML."""

from __future__ import annotations

import pytest

from testbed.stack.monitor.samples import Sample, Tick
from testbed.stack.monitor.shares import share_pct

WHO = ("u", "main")
MS = 1_000_000


def sample(pid: int, *, uid: str = "u", busy: int | None = None, pct: int | None = None) -> Sample:
    return Sample(
        uuid="GPU-a",
        pid=pid,
        pod_uid=uid,
        container="main" if uid else "",
        bytes=1,
        busy_ns=busy,
        utilization_pct=pct,
    )


IDLE = sample(0, uid="")


def share(*ticks: tuple[float, list[Sample]]) -> float | None:
    found = share_pct(
        [Tick(time=time, samples=tuple(samples)) for time, samples in ticks], WHO, "GPU-a"
    )
    return None if found is None else round(found, 6)


def test_by_the_cards_own_accounting() -> None:
    assert share((0, [sample(1, busy=0)]), (2, [sample(1, busy=600 * MS)])) == 30
    # NVML's rounded figure is not looked at where the card keeps books.
    assert share((0, [sample(1, busy=0)]), (2, [sample(1, busy=600 * MS, pct=99)])) == 30


def test_processes_of_a_container_are_summed_and_others_are_not() -> None:
    first = [sample(1, busy=500 * MS), sample(2, busy=0), sample(3, uid="v", busy=0)]
    last = [sample(1, busy=700 * MS), sample(2, busy=300 * MS), sample(3, uid="v", busy=999 * MS)]
    assert share((10, first), (11, last)) == 50


def test_a_process_that_comes_or_ends_in_between_counts() -> None:
    assert (
        share(
            (0, [sample(1, busy=900 * MS)]),
            (1, [sample(1, busy=1000 * MS), sample(2, busy=50 * MS)]),
            (2, [sample(2, busy=150 * MS)]),
        )
        == (100 + 150) / 2000 * 100
    )


def test_a_pid_that_is_another_process_now_does_not_run_backwards() -> None:
    assert (
        share(
            (0, [sample(1, busy=900 * MS)]),
            (1, [sample(1, busy=1000 * MS)]),
            (2, [sample(1, busy=20 * MS)]),
        )
        == (100 + 20) / 2000 * 100
    )


def test_by_nvml_where_the_card_keeps_no_books() -> None:
    ticks = [(float(i), [sample(1, pct=40 if i % 2 else 20)]) for i in range(5)]
    assert share(*ticks) == 30
    assert share((0.0, [sample(1, pct=99)]), (1.0, [sample(1, pct=40)])) == 40


def test_unknown_is_not_zero() -> None:
    assert share() is None
    assert share((0, [sample(1, busy=5)])) is None, "one look is no span"
    assert share((0, [sample(1)]), (1, [sample(1)])) is None, "NVML tells nothing"


@pytest.mark.parametrize("others", [IDLE, sample(3, uid="v", busy=5)])
def test_a_container_without_a_process_used_nothing(others: Sample) -> None:
    assert share((0, [others]), (1, [others])) == 0


def test_a_card_that_was_not_read_gives_no_share() -> None:
    assert share((0, []), (1, [])) is None
