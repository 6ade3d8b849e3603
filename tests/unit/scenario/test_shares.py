"""Shares and rates over a window, against plain sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.scenario.question import Sample
from testbed.lab.scenario.shares import device_share, step_rate, water_fill

UUID = "GPU-1"


def sample(time, busy_ms=None, *, pid=1, uid="u", container="main", uuid=UUID, pct=None):
    return Sample(
        time=time,
        uuid=uuid,
        pid=pid,
        pod_uid=uid,
        container=container,
        bytes=1,
        busy_ns=None if busy_ms is None else round(busy_ms * 1e6),
        utilization_pct=pct,
    )


def share(samples, start=0.0, end=10.0):
    return device_share(samples, pod_uid="u", container="main", uuid=UUID, start=start, end=end)


@given(
    rate=st.floats(0, 100),
    before=st.integers(0, 10**6),
    period=st.sampled_from([0.1, 0.17, 0.5]),
)
def test_a_steady_share_is_found_whatever_came_before(rate, before, period):
    times = [n * period for n in range(-20, int(20 / period))]
    found = share([sample(t, before + (t + 20) * rate * 10) for t in times])
    assert found.pct == pytest.approx(rate, abs=0.01)
    assert 0 <= found.start < found.end <= 10 and found.measure == "busy"


def test_processes_of_a_container_are_summed_and_others_are_not():
    samples = []
    for n in range(11):
        samples += [
            sample(n, 100 * n, pid=1),
            sample(n, 7000 + 200 * n, pid=2),
            sample(n, 400 * n, pid=3, uid="other"),
            sample(n, 400 * n, pid=4, container="side"),
            sample(n, 400 * n, pid=1, uuid="GPU-2"),
        ]
    assert share(samples).pct == pytest.approx(30)


def test_a_process_that_comes_and_one_that_goes_count_with_what_they_had():
    samples = [sample(n, 0, pid=9) for n in range(11)]
    samples += [sample(n, 5000 + 100 * n, pid=1) for n in range(6)]  # 0.5 s, then gone
    samples += [sample(n, 100 * (n - 6), pid=2) for n in range(7, 11)]  # 0.4 s, from 6 on
    assert share(samples).pct == pytest.approx(9)


def test_a_counter_that_falls_is_another_process():
    samples = [sample(n, 1000 * n) for n in range(6)] + [sample(n, 500 * (n - 5)) for n in (6, 7)]
    samples += [sample(n, 1000) for n in (8, 9, 10)]
    assert share(samples).pct == pytest.approx(60)


def test_silence_is_no_share_and_idleness_is_none_at_all():
    assert share([]) is None
    assert share([sample(1, 0)]) is None
    assert share([sample(n / 2, 0) for n in range(8)]) is None  # the rest of the window is silent
    idle = [sample(n, None, pid=0, uid="") for n in range(11)]
    assert share(idle) is None
    # The container had its say, and the card goes on without it.
    assert share([sample(-1, 50), *idle]).pct == 0


def test_hardware_tells_utilisation():
    samples = [sample(n, pct=30.0 + n % 2, pid=1) for n in range(10)]
    samples += [sample(n, pct=10.0, pid=2) for n in range(5)]
    found = share(samples)
    assert found.measure == "utilization" and found.pct == pytest.approx(35.5)


def steps(*pairs, uuid=UUID):
    return [{"event": "steps", "time": t, "steps": n, "uuid": uuid} for t, n in pairs]


@given(rate=st.integers(1, 1000), start=st.floats(0, 3), length=st.floats(3, 6))
def test_a_steady_rate_is_found_between_any_two_times(rate, start, length):
    events = steps(*((n / 4, 100 + rate * n // 4) for n in range(41)))
    found = step_rate(events, uuid=UUID, start=start, end=start + length)
    assert found == pytest.approx(rate, abs=1)


def test_a_rate_needs_tellings_over_most_of_the_window():
    events = steps((0, 0), (1, 10), (2, 20))
    assert step_rate(events, uuid=UUID, start=0, end=10) is None
    assert step_rate(events, uuid=UUID, start=5, end=10) is None
    assert step_rate(events, uuid="GPU-2", start=0, end=2) is None
    assert step_rate([], uuid=UUID, start=0, end=2) is None
    assert step_rate(events, uuid=UUID, start=0, end=2.5) == 10


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6), st.floats(1, 100))
def test_a_capacity_is_given_fairly_and_to_the_last(wanted, capacity):
    given_ = water_fill(wanted, capacity)
    assert sum(given_) == pytest.approx(min(capacity, sum(wanted)))
    level = max(given_)
    for want, got in zip(wanted, given_, strict=True):
        assert got <= want
        # Who did not get all has as much as anybody.
        assert got == pytest.approx(want) or got == pytest.approx(level)


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ((50, 30), (50, 30)),
        ((30, 70), (30, 67.5)),
        ((100, 100), (48.75, 48.75)),
        ((20, 30, 50), (20, 30, 47.5)),
        ((100, 10, 100), (43.75, 10, 43.75)),
    ],
)
def test_shares_of_a_card_as_its_slices_give_them(wanted, got):
    assert water_fill(wanted, 97.5) == pytest.approx(got)
