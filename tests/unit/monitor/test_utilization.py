"""NVML's samples become windows with the right interval, whatever NVML does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.stack.devices import ProcessSample, UtilizationReading
from testbed.stack.monitor.utilization import (
    MS,
    PERIOD_NS,
    Sampler,
    Window,
    monotonic_ns,
    shares,
)

REAL_NS = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


def stamp(moment_ns: int) -> int:
    """The driver's stamp of a monotonic time, by the wall clock."""
    return (REAL_NS + moment_ns) // 1000


def busy(moment_ns: int, **pct: int) -> UtilizationReading:
    return UtilizationReading(
        processes=tuple(
            ProcessSample(pid=int(pid[1:]), stamp_us=stamp(moment_ns), sm_pct=value)
            for pid, value in pct.items()
        ),
        card_stamp_us=stamp(moment_ns),
        card_pct=min(100, sum(pct.values())),
    )


def idle(moment_ns: int) -> UtilizationReading:
    return UtilizationReading(card_stamp_us=stamp(moment_ns), card_pct=0)


def take(sampler: Sampler, reading: UtilizationReading, now_ns: int) -> Window | None:
    return sampler.take(reading, now_ns=now_ns, real_ns=REAL_NS + now_ns)


def test_a_window_is_of_the_time_between_two_samples() -> None:
    sampler = Sampler()
    first = take(sampler, busy(1 * SECOND, p7=30), SECOND + 100 * MS)
    assert first == Window(stamp_ns=SECOND, interval_ns=PERIOD_NS, sm_pct={7: 30}, card_pct=30), (
        "nothing is known before the first sample but the documented period"
    )
    second = take(sampler, busy(SECOND + 200 * MS, p7=30, p8=60), SECOND + 300 * MS)
    assert second == Window(
        stamp_ns=SECOND + 200 * MS, interval_ns=200 * MS, sm_pct={7: 30, 8: 60}, card_pct=90
    )


def test_no_sample_no_window_and_it_is_asked_again_soon() -> None:
    sampler = Sampler()
    assert take(sampler, busy(SECOND, p7=1), SECOND + 100 * MS) is not None
    due = sampler.due_ns - (SECOND + 100 * MS)
    assert PERIOD_NS - 20 * MS < due < PERIOD_NS, "not before the next can be there"
    assert take(sampler, UtilizationReading(card_pct=1), sampler.due_ns) is None
    assert sampler.due_ns - (SECOND + 100 * MS) < PERIOD_NS + 20 * MS


def test_the_same_sample_told_twice_is_one_window() -> None:
    sampler = Sampler()
    assert take(sampler, busy(SECOND, p7=1), SECOND + 100 * MS) is not None
    assert take(sampler, busy(SECOND, p7=1), SECOND + 115 * MS) is None
    assert sampler.since_us == stamp(SECOND)


def test_polls_follow_the_drivers_period() -> None:
    """About one question too many for each sample, none missed, and soon found.

    Also where every sleep is 5 ms too long, as on a loaded machine.
    """
    sampler = Sampler()
    period, lag, slack = 250 * MS, 100 * MS, 5 * MS
    now, asked, told, ages = 10 * SECOND, 0, [], []
    while len(told) < 40:
        newest = (now - lag) // period * period
        reading = UtilizationReading(card_pct=50)
        if stamp(newest) > sampler.since_us:
            reading = busy(newest, p7=50)
        asked += 1
        window = take(sampler, reading, now)
        if window is not None:
            told.append(window)
            ages.append(now - window.stamp_ns)
        now = max(now + MS, sampler.due_ns) + slack
    assert {b.stamp_ns - a.stamp_ns for a, b in itertools.pairwise(told)} == {period}
    assert {window.interval_ns for window in told[1:]} == {period}
    assert sampler.period_ns == period
    assert asked < 2.5 * len(told)
    assert sorted(ages[20:])[10] < lag + 25 * MS


@pytest.mark.parametrize("busy_from", [0, 8])
def test_whoever_missed_samples_does_not_go_on_missing_them(busy_from: int) -> None:
    """A machine that was too busy to ask for some seconds made two periods of each: from then on
    every second sample was missed, and the other one was taken for both."""
    sampler, lag, now = Sampler(), 100 * MS, SECOND
    told: list[Window] = []
    while len(told) < 120:
        newest = (now - lag) // PERIOD_NS * PERIOD_NS
        reading = UtilizationReading(card_pct=50)
        if stamp(newest) > sampler.since_us:
            # One kernel fills every second period.
            reading = busy(newest, p7=100 if newest // PERIOD_NS % 2 else 1)
        window = take(sampler, reading, now)
        if window is not None:
            told.append(window)
        machine_is_busy = busy_from <= len(told) < busy_from + 20
        now = now + 2 * PERIOD_NS if machine_is_busy else sampler.due_ns
    for window in told[2:] if busy_from else told[70:]:
        assert window.interval_ns == pytest.approx(PERIOD_NS, abs=MS), "a sample is of one period"
    last = told[-50:]
    for one, other in itertools.pairwise(last):
        assert other.stamp_ns - one.stamp_ns == pytest.approx(PERIOD_NS, abs=MS)
    assert sum(w.sm_pct[7] for w in last) / len(last) == pytest.approx(50.5)


def test_an_idle_card_is_told_by_its_own_sample() -> None:
    sampler = Sampler()
    take(sampler, busy(SECOND, p7=99), SECOND + 100 * MS)
    window = take(sampler, idle(SECOND + 160 * MS), SECOND + 260 * MS)
    assert window is not None and window.sm_pct == {} and window.interval_ns == 160 * MS
    assert sampler.process_samples


def test_without_samples_of_the_card_silence_means_idle_after_two_periods() -> None:
    sampler = Sampler()
    start = 5 * SECOND
    silent = UtilizationReading(card_pct=0)
    assert take(sampler, silent, start) is None
    assert take(sampler, silent, start + PERIOD_NS) is None
    window = take(sampler, silent, start + 2 * PERIOD_NS + MS)
    assert window is not None and window.sm_pct == {} and window.by_process
    assert window.stamp_ns < start + 2 * PERIOD_NS, "not of a time that NVML cannot know yet"


def test_a_busy_card_without_processes_is_no_idle_one() -> None:
    """Where NVML does not split the card's use (measured: H200, driver 580)."""
    sampler = Sampler()
    period = PERIOD_NS
    seen: list[Window] = []
    now = 5 * SECOND
    for _ in range(100):
        newest = (now - 100 * MS) // period * period
        fresh = stamp(newest) > sampler.card_since_us
        reading = UtilizationReading(card_stamp_us=stamp(newest) if fresh else None, card_pct=80)
        window = take(sampler, reading, now)
        if window is not None:
            seen.append(window)
        now = sampler.due_ns
    assert not sampler.process_samples
    assert len(seen) > 10
    assert {(w.by_process, w.card_pct) for w in seen} == {(False, 80)}
    assert {w.interval_ns for w in seen[1:]} <= set(range(period - MS, period + MS))
    assert take(sampler, busy(now, p7=80), now + 100 * MS) is not None
    assert sampler.process_samples, "it recovers"


@pytest.mark.parametrize("pct", [80, None])
def test_without_any_sample_a_card_is_idle_only_if_its_rate_says_so(pct: int | None) -> None:
    """Silence of a busy card, told as idleness, would let everybody run free."""
    sampler = Sampler()
    now = 5 * SECOND
    for _ in range(100):
        assert take(sampler, UtilizationReading(card_pct=pct), now) is None
        now = sampler.due_ns
    assert sampler.process_samples == (pct is None), "unknown is not busy"


def test_processes_samples_that_come_later_than_the_cards_are_waited_for() -> None:
    sampler = Sampler()
    card = UtilizationReading(card_stamp_us=stamp(SECOND + 10 * MS), card_pct=80)
    assert take(sampler, card, SECOND + 100 * MS) is None
    assert sampler.process_samples
    window = take(sampler, busy(SECOND, p7=80), SECOND + 130 * MS)
    assert window is not None and window.sm_pct == {7: 80}


@pytest.mark.parametrize("pct", [-1, 101, 4_000_000_000])
def test_a_figure_that_cannot_be_is_no_sample(pct: int) -> None:
    sampler = Sampler()
    assert take(sampler, busy(SECOND, p7=50, p8=pct), SECOND + 100 * MS) is None
    assert take(sampler, busy(SECOND + 160 * MS, p7=50), SECOND + 260 * MS) is not None


@pytest.mark.parametrize(
    "reading", [UtilizationReading(error="GPU is lost"), UtilizationReading(offered=False)]
)
def test_a_driver_that_tells_nothing_is_asked_at_leisure(reading: UtilizationReading) -> None:
    sampler = Sampler()
    assert take(sampler, reading, SECOND) is None
    assert sampler.due_ns >= SECOND + PERIOD_NS and not sampler.process_samples


def test_after_a_pause_the_interval_is_not_the_pause() -> None:
    sampler = Sampler()
    take(sampler, busy(SECOND, p7=1), SECOND + 100 * MS)
    window = take(sampler, busy(60 * SECOND, p7=1), 60 * SECOND + 100 * MS)
    assert window is not None and window.interval_ns == PERIOD_NS


def test_stamps_of_either_clock() -> None:
    now = 50 * SECOND
    assert monotonic_ns(stamp(now - 100 * MS), now_ns=now, real_ns=REAL_NS + now) == now - 100 * MS
    own = (now - 100 * MS) // 1000
    assert monotonic_ns(own, now_ns=now, real_ns=REAL_NS + now) == now - 100 * MS
    assert monotonic_ns(stamp(now + SECOND), now_ns=now, real_ns=REAL_NS + now) == now


@given(
    used=st.dictionaries(st.integers(1, 30), st.integers(0, 100), max_size=12),
    own=st.frozensets(st.integers(1, 30), max_size=12),
)
def test_shares_are_per_mille_of_one_card(used: dict[int, int], own: frozenset[int]) -> None:
    window = Window(stamp_ns=1, interval_ns=1, sm_pct=used, card_pct=None)
    found = shares(window, own)
    assert found is not None
    mine, others = found
    assert 0 <= mine <= 1000 and 0 <= others <= 1000
    assert shares(window, frozenset(used) - own) == (others, mine)
    assert (mine == 0) == (not any(used.get(pid) for pid in own))


def test_a_card_that_one_container_has_to_itself_needs_no_samples_of_processes() -> None:
    window = Window(stamp_ns=1, interval_ns=1, sm_pct={}, card_pct=73, by_process=False)
    a, b = frozenset({1, 2}), frozenset({3})
    assert shares(window, a) == (730, 0)
    assert shares(window, frozenset(), a | b) == (0, 730), "who is not there did nothing"
    assert shares(window, a, b) is None, "nobody knows which of the two it was"
    unknown = Window(stamp_ns=1, interval_ns=1, sm_pct={}, card_pct=None, by_process=False)
    assert shares(unknown, a) is None


def test_samples_that_give_the_whole_card_to_one_process_are_the_cards_alone() -> None:
    """An H200 under driver 580: two that had 46 and 52 % each had 99 in turns."""
    sampler = Sampler()
    told = [8, 7, 7, 8, 7, 8, 8, 7, 7]  # whom each period was given
    windows = [
        take(sampler, busy(SECOND + at, **{f"p{pid}": 99}), SECOND + at + 5 * MS)
        for at, pid in ((200 * MS * i, pid) for i, pid in enumerate(told))
    ]
    known = [window is not None and window.by_process for window in windows]
    assert known == [True] * 4 + [False] * 5, "three times back and forth are no accident"
    assert not sampler.process_samples
    last = windows[-1]
    assert last is not None and last.card_pct == 99 and not last.sm_pct
    assert shares(last, frozenset({7}), frozenset({8})) is None
    assert shares(last, frozenset({7})) == (990, 0)


def test_a_card_that_is_handed_over_is_no_such_card() -> None:
    sampler = Sampler()
    for i, pid in enumerate([7, 7, 7, 8, 8, 8]):
        at = SECOND + 200 * MS * i
        window = take(sampler, busy(at, **{f"p{pid}": 99}), at + 5 * MS)
        assert window is not None and window.by_process
    for i, used in enumerate([{"p7": 70}, {"p8": 30}, {"p7": 70}, {"p8": 30}, {"p7": 70}]):
        at = 3 * SECOND + 200 * MS * i
        window = take(sampler, busy(at, **used), at + 5 * MS)
        assert window is not None and window.by_process, "together they fit on one card"


def test_a_driver_that_tells_two_in_one_period_is_believed_again() -> None:
    sampler = Sampler()
    for i, pid in enumerate([8, 7, 8, 7, 8]):
        at = SECOND + 200 * MS * i
        take(sampler, busy(at, **{f"p{pid}": 99}), at + 5 * MS)
    assert not sampler.process_samples
    window = take(sampler, busy(3 * SECOND, p7=46, p8=46), 3 * SECOND + 5 * MS)
    assert window is not None and window.by_process and window.sm_pct == {7: 46, 8: 46}
    assert sampler.process_samples
