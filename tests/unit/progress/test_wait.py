from __future__ import annotations

import pytest

from testbed.errors import ClusterError, DeployError, InputError, WaitTimeout
from testbed.lab.wait import wait_until


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_returns_the_ready_observation_and_tells_changes_only() -> None:
    time, told, seen = Time(), [], iter(["a", "a", "b", "b", "b", "done"])
    found = wait_until(
        "x",
        lambda: next(seen),
        ready=lambda s: s == "done",
        timeout_s=60,
        report=told.append,
        clock=time,
        sleep=time.sleep,
    )
    assert found == "done"
    assert told == ["a", "b"]
    assert len(time.slept) == 5


def test_ready_at_once_neither_sleeps_nor_tells() -> None:
    time, told = Time(), []
    wait_until(
        "x", lambda: 1, ready=bool, timeout_s=0, report=told.append, clock=time, sleep=time.sleep
    )
    assert time.slept == [] and told == []


def test_time_out_holds_the_last_status_and_the_hint() -> None:
    time, numbers = Time(), iter(range(1000))
    with pytest.raises(WaitTimeout) as caught:
        wait_until(
            "node n1 is Ready",
            lambda: next(numbers),
            ready=lambda _: False,
            timeout_s=1,
            describe=lambda n: f"look {n}",
            interval_s=0.3,
            hint="look at the kubelet",
            clock=time,
            sleep=time.sleep,
        )
    error = caught.value
    assert error.what == "gave up waiting after 1 s until node n1 is Ready"
    assert error.why == "last seen: look 4"
    assert error.hint == "look at the kubelet"
    assert time.now == pytest.approx(1)  # the last pause ends at the deadline


def test_failed_predicate_ends_the_wait() -> None:
    time = Time()
    with pytest.raises(DeployError, match="crashed"):
        wait_until(
            "x",
            lambda: "crash",
            ready=lambda _: False,
            failed=lambda s: DeployError("crashed") if s == "crash" else None,
            timeout_s=60,
            clock=time,
            sleep=time.sleep,
        )
    assert time.slept == []


def test_transient_errors_are_a_status_others_pass() -> None:
    time, told = Time(), []
    answers = iter([ClusterError("no answer", why="refused"), "ok"])

    def observe() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    found = wait_until(
        "x",
        observe,
        ready=lambda s: s == "ok",
        timeout_s=5,
        transient=(ClusterError,),
        report=told.append,
        clock=time,
        sleep=time.sleep,
    )
    assert found == "ok" and told == ["no answer: refused"]

    def wrong() -> str:
        raise InputError("bad")

    with pytest.raises(InputError):
        wait_until(
            "x",
            wrong,
            ready=lambda _: True,
            timeout_s=5,
            transient=(ClusterError,),
            clock=time,
            sleep=time.sleep,
        )
