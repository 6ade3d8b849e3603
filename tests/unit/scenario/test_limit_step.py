"""The question of limits that change: what follows, what does not, what its control must show."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, load_question
from testbed.lab.scenario.question import ChangeTrace
from testbed.units import MIB

from .conftest import ROOT
from .made import UUID, Made


@pytest.fixture(scope="module")
def question():
    return load_question(ROOT / "scenarios" / "limit_step")


def read(question, **values):
    given = {"shares": [60, 20, 40], "seconds": 8.0, **values}
    return checked_parameters(question, given)


def run(question, parameters, got, *, late=0.0, enforcement="on", lowered=None, why=""):
    """Return a trial in which each step has the share that ``got(step)`` says.

    Args:
        late: How long the share before lasts after a change, seconds.
    """
    module = sys.modules[type(question).__module__]
    made, now, before = Made(["p"], enforcement), 10.0, None
    made.say("p", "working", now, uuid=UUID)
    changes = {}
    for step in module.steps(parameters):
        made.say("p", "holding", now, step.phase)
        first = now + (late if before is not None else 0.0)
        made.count(now, first, share={"p": before or 0.0})
        made.count(first, now + 8.0, share={"p": got(step)})
        before, now = got(step), now + 8.0
        if step.number < len(parameters.shares):
            changes[step.phase] = ChangeTrace(asked=now, done=now + 1.0, why=why)
            made.count(now, now + 1.0, share={"p": before})
            now += 1.0
        made.say("p", "released", now, step.phase)
    if parameters.lowered:
        changes["memory"] = ChangeTrace(asked=now, done=now + 1.0, why=why)
        total = parameters.lowered if enforcement == "on" else 80_000
        told = {"granted": False, "kept": True, "again": True, "total": total * MIB}
        made.say("p", "lowered", now + 2.0, **{**told, **(lowered or {})})
    trial = made.trial()
    return replace(trial, pods={"p": replace(trial.pods["p"], changes=changes)})


def bad(checks):
    return {(c.name, c.variant) for c in checks if c.verdict != "pass"}


def test_a_pod_that_follows_and_its_control(question):
    parameters = read(question)
    found = question.checks(parameters, run(question, parameters, lambda step: step.share))
    assert bad(found) == set()
    assert {c.name for c in found} == set(question.meanings)
    assert [c.name for c in found].count("settled") == 2, "nothing changes before the first"
    free = run(
        question, parameters, lambda step: 99.0, enforcement="off", lowered={"granted": True}
    )
    control = question.control(parameters, free)
    assert control.verdict == "pass", control.reason
    assert all(c.verdict == "fail" and c.control == "fail" for c in control.checks)


def test_a_control_that_follows_all_the_same_is_an_error(question):
    """Also one whose card was not free: then it shows nothing."""
    parameters = read(question)
    control = question.control(
        parameters, run(question, parameters, lambda step: step.share, enforcement="off")
    )
    assert control.verdict == "error" and "held" in control.reason
    slow = run(question, parameters, lambda step: 70.0, enforcement="off")
    assert "70 % of an idle card only" in question.control(parameters, slow).reason


@pytest.mark.parametrize(("late", "holds"), [(0.5, True), (1.5, True), (3.5, False), (8.0, False)])
def test_two_seconds_are_there_to_settle(question, late, holds):
    parameters = read(question)
    trial = run(question, parameters, lambda step: step.share, late=late)
    verdicts = {
        c.variant: c.verdict for c in question.checks(parameters, trial) if c.name == "settled"
    }
    assert set(verdicts.values()) == {"pass" if holds else "fail"}


def test_a_pod_that_takes_no_notice_fails_where_the_limit_is_another(question):
    parameters = read(question)
    found = question.checks(parameters, run(question, parameters, lambda step: 60.0))
    assert {variant for _, variant in bad(found)} == {"step 2: 60 to 20 %", "step 3: 20 to 40 %"}
    assert {c.reason for c in found if c.verdict == "fail"} == {"more than its limit"}


def test_a_change_that_was_not_made_is_an_error(question):
    parameters = read(question)
    trial = run(question, parameters, lambda step: step.share, why="no plugin runs")
    found = question.checks(parameters, trial)
    reasons = {c.reason for c in found if c.verdict == "error"}
    assert reasons == {"its limit was not changed: no plugin runs"}
    assert next(c.verdict for c in found) == "pass", "before the first change"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"granted": True}, "above the limit"),
        ({"kept": False}, "taken away"),
        ({"again": False}, "even after"),
        ({"total": 4096 * MIB}, "another size"),
    ],
)
def test_memory_below_what_is_held(question, told, reason):
    parameters = read(question)
    trial = run(question, parameters, lambda step: step.share, lowered=told)
    (check,) = [c for c in question.checks(parameters, trial) if c.name == "refused"]
    assert check.verdict == "fail" and reason in check.reason
    without = read(question, lowered=0)
    assert "refused" not in {c.name for c in question.checks(without, trial)}


def test_a_workload_that_did_not_get_there(question):
    parameters = read(question)
    trial = run(question, parameters, lambda step: step.share)
    nothing = replace(trial, pods={"p": replace(trial.pods["p"], containers=(), changes={})})
    found = question.checks(parameters, nothing)
    assert {c.verdict for c in found} == {"error"}
    assert all("did not get there" in c.reason for c in found)


def test_the_plan_changes_limits_at_the_end_of_each_step_but_the_last(question):
    (pod,) = question.plan(read(question))
    told = {phase: (c.gpucores_pct, c.gpumem_mib) for phase, c in pod.limits_in.items()}
    assert told == {"step-1-60": (20, None), "step-2-20": (40, None), "memory": (None, 2048)}
    assert pod.containers[0].limits["nvidia.com/gpucores"] == "60"
    phases = pod.containers[0].parameters["phases"]
    assert [phase["name"] for phase in phases] == [*list(told)[:2], "step-3-40", "memory"]


def test_the_limit_of_each_moment_is_drawn(question):
    parameters = read(question)
    trial = run(question, parameters, lambda step: step.share)
    (side,) = question.chart(parameters, trial, None).sides
    (panel,) = side.panels
    assert [(cap.value, cap.begin, cap.end) for cap in panel.caps] == [
        (60.0, None, 19.0),
        (20.0, 19.0, 28.0),
        (40.0, 28.0, None),
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"shares": [60]},
        {"shares": [60, 60]},
        {"shares": [20, 60]},
        {"shares": [90, 20]},
        {"shares": [60, 0]},
        {"seconds": 2},
        {"kernel_us": 1},
        {"lowered": 4000},
        {"gpumem": 100},
        {"hold_seconds": 1},
    ],
)
def test_what_cannot_be_is_refused(question, values):
    with pytest.raises(InputError):
        question.validate(read(question, **values))
