"""The question of shares by kernels: what holds, what does not, what its control must show."""

from __future__ import annotations

import sys

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, load_question

from .conftest import ROOT
from .made import UUID, Made


@pytest.fixture(scope="module")
def question():
    return load_question(ROOT / "scenarios" / "sm_throttle")


def read(question, **values):
    given = {"shares": [10, 60], "kernels_us": [200, 50_000], "seconds": 6.0, **values}
    return checked_parameters(question, given)


def run(question, parameters, got, *, start=None, work=None):
    """Return a trial in which each turn has the share that ``got(turn)`` says.

    Its pod counts ten kernels for each percent and second of it, or of what ``work(turn)`` says.
    """
    work = work or got
    turns = sys.modules[type(question).__module__].turns(parameters)
    made, now = Made([f"p{share}" for share in parameters.shares]), 10.0
    for pod in made.events:
        made.say(pod, "working", 1.0, uuid=UUID)
    for turn in turns:
        made.say(turn.pod, "released", now, turn.name)
        first = got(turn) if start is None else start(turn)
        made.count(now, now + 1.0, share={turn.pod: first})
        made.count(now + 1.0, now + 6.0, share={turn.pod: got(turn)})
        done = 0.0
        for second in range(7):
            made.say(turn.pod, "steps", now + second, turn.name, uuid=UUID, steps=round(done))
            done += 10 * (first if second == 0 and start else work(turn))
        made.say(turn.pod, "worked", now + 6.0, turn.name)
        now += 7.0
    return made.trial()


def free(turn):
    return 55.0 if (turn.pattern, turn.kernel_us) == ("sync", 200) else 99.0


def bad(checks):
    return {(c.name, c.pod, c.variant) for c in checks if c.verdict != "pass"}


def test_what_holds_and_its_control(question):
    parameters = read(question)
    trial = run(question, parameters, lambda t: min(t.share, free(t)))
    control = run(question, parameters, free)
    found = question.checks(parameters, trial, control)
    assert bad(found) == set()
    assert {c.name for c in found} == set(question.meanings)
    # A program that waits for short kernels cannot use 60 %: no control there.
    told = {(c.pod, c.variant): c.control for c in found if c.name == "share_card"}
    assert told.pop(("p60", "sync, 200 µs")) == "any"
    assert set(told.values()) == {"fail"}
    assert question.control(parameters, control).verdict == "pass"


def test_a_limiter_that_does_nothing_fails(question):
    parameters = read(question)
    found = question.checks(parameters, run(question, parameters, free), None)
    assert {c.name for c in found if c.verdict == "fail"} == {"share_card", "start"}


@pytest.mark.parametrize(
    ("pattern", "kernel_us", "off", "verdict"),
    [
        ("deep", 200, 1.9, "pass"),
        ("deep", 200, 2.2, "fail"),
        ("deep", 200, -2.2, "fail"),
        ("deep", 50_000, 2.8, "pass"),  # one kernel of 50 ms in 5 s is a point
        ("deep", 50_000, -3.2, "fail"),
        ("graph", 200, 2.2, "fail"),
        ("sync", 50_000, -3.5, "fail"),  # it could have had its share
    ],
)
def test_one_turn_is_off(question, pattern, kernel_us, off, verdict):
    parameters = read(question, shares=[10])

    def changed(t):
        return 10.0 + (off if (t.pattern, t.kernel_us) == (pattern, kernel_us) else 0.0)

    trial = run(question, parameters, changed, start=lambda t: 10.0)
    found = question.checks(parameters, trial, run(question, parameters, free))
    expected = (
        {("share_card", "p10", f"{pattern}, {kernel_us:,} µs")} if verdict == "fail" else set()
    )
    assert bad(found) == expected


def test_the_pods_own_count_is_shown_and_must_agree(question):
    parameters = read(question, shares=[10, 60])
    control = run(question, parameters, free)

    def judged(work):
        trial = run(question, parameters, lambda t: min(t.share, free(t)), work=work)
        found = question.checks(parameters, trial, control)
        return {(c.pod, c.variant): c for c in found if c.name == "share_card"}

    told = judged(lambda t: min(t.share, free(t)))
    assert told["p10", "deep, 200 µs"].workload == pytest.approx(10, abs=0.2)
    assert told["p60", "sync, 200 µs"].workload == pytest.approx(55, abs=0.2)
    # Whoever reads why 55 % of 60 are enough finds the reason.
    assert "can use 55 % at most" in told["p60", "sync, 200 µs"].reason
    assert all(c.verdict == "pass" for c in told.values())
    told = judged(lambda t: 20.0 if t.variant == "deep, 200 µs" else min(t.share, free(t)))
    wrong = {key for key, check in told.items() if check.verdict == "fail"}
    assert wrong == {("p10", "deep, 200 µs"), ("p60", "deep, 200 µs")}
    assert "own count" in told["p10", "deep, 200 µs"].reason


def test_a_pod_that_counts_nothing_is_an_error(question):
    parameters = read(question, shares=[10], kernels_us=[200])
    control = run(question, parameters, free)
    trial = run(question, parameters, lambda t: float(t.share), work=lambda t: 0.0)
    found = question.checks(parameters, trial, control)
    assert {c.verdict for c in found if c.name == "share_card"} == {"fail"}
    nothing = question.checks(
        parameters, trial, run(question, parameters, free, work=lambda t: 0.0)
    )
    assert {c.verdict for c in nothing if c.name == "share_card"} == {"error"}


def test_a_first_second_above_the_share(question):
    parameters = read(question, shares=[10])
    trial = run(question, parameters, lambda t: 10.0, start=lambda t: 90.0)
    found = question.checks(parameters, trial, run(question, parameters, free))
    assert {c.name for c in found if c.verdict == "fail"} == {"start"}


def test_a_control_that_holds_proves_nothing(question):
    parameters = read(question)
    held = run(question, parameters, lambda t: float(t.share))
    control = question.control(parameters, held)
    assert control.verdict == "error" and "held" in control.reason


def test_a_pod_that_died_is_an_error(question):
    parameters = read(question)
    made = Made(["p10", "p60"])
    found = question.checks(parameters, made.trial(), None)
    assert {c.verdict for c in found} == {"error"}
    assert question.control(parameters, made.trial()).verdict == "error"


@pytest.mark.parametrize(
    "values",
    [
        {"shares": []},
        {"shares": [30, 30]},
        {"shares": [60, 50]},
        {"shares": [90]},
        {"kernels_us": [5]},
        {"seconds": 1.0},
        {"patterns": []},
        {"shares": [50], "kernels_us": [200], "patterns": ["sync"]},  # no control could tell
    ],
)
def test_refused(question, values):
    with pytest.raises(InputError):
        read(question, **values)


def test_pods_ask_for_what_the_case_says(question):
    plans = {plan.name: plan.containers[0] for plan in question.plan(read(question))}
    assert plans["p60"].limits["nvidia.com/gpucores"] == "60"
    assert plans["p60"].env["GPU_CORE_UTILIZATION_POLICY"] == "force"
    indices = [turn["index"] for plan in plans.values() for turn in plan.parameters["turns"]]
    assert sorted(indices) == list(range(len(indices)))  # one works at a time


def test_asked_against_got(question):
    parameters = read(question)
    trial = run(question, parameters, lambda t: min(t.share, free(t)))
    control = run(question, parameters, free)
    (relation,) = question.chart(parameters, trial, control).relations
    drawn = {(curve.label, curve.control): curve for curve in relation.curves}
    assert len(drawn) == 2 * 6
    deep = drawn["deep, 200 µs", False]
    assert deep.xs == (10.0, 60.0) and deep.ys == pytest.approx((10.0, 60.0), abs=0.5)
    assert drawn["sync, 200 µs", False].ys[1] == pytest.approx(55.0, abs=0.5)
    assert drawn["deep, 200 µs", True].ys == pytest.approx((99.0, 99.0), abs=0.5)
    (alone,) = question.chart(parameters, trial, None).relations
    assert not any(curve.control for curve in alone.curves)
