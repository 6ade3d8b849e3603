"""The question of ways round the limit: what is stopped, what is shown, its control."""

from __future__ import annotations

import dataclasses

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, load_question
from testbed.units import MIB

from .conftest import ROOT
from .made import Made

WAYS = [
    *("disable_variable", "limit_variable", "empty_environment", "other_preload"),
    *("driver_preload", "deepbind", "own_loader", "driver_copy", "own_lookup"),
]
OPEN = {"own-loader", "driver-copy", "own-lookup"}


@pytest.fixture(scope="module")
def question():
    return load_question(ROOT / "scenarios" / "bypass")


def read(question, **values):
    return checked_parameters(question, {"ways": WAYS, **values})


def run(open_ways=OPEN, called=OPEN, least=4096):
    """Return a trial in which some pods got round their caps and some were called so."""
    pods = [way.replace("_", "-") for way in WAYS]
    made = Made(pods)
    held = {pod: (6144 if pod in open_ways else least) * MIB for pod in pods}
    for pod in pods:
        made.say(pod, "taken", 10.0, "taken", bytes=held[pod])
        made.say(pod, "holding", 10.0, "taken")
        made.say(pod, "released", 15.0, "taken")
    made.count(10.0, 15.0, held=held)
    said = {(f"uid-{pod}", "main"): "library-not-loaded" for pod in called}
    return dataclasses.replace(made.trial(), unenforced=said)


def bad(checks):
    return {(c.name, c.pod) for c in checks if c.verdict != "pass"}


def test_what_holds_and_its_control(question):
    parameters = read(question)
    found = question.checks(parameters, run())
    assert bad(found) == set()
    assert {c.name for c in found} == set(question.meanings)
    everybody = {way.replace("_", "-") for way in WAYS}
    control = question.control(parameters, run(open_ways=everybody))
    assert control.verdict == "pass", control.reason
    assert len(control.checks) == 9
    # What the monitor says of the open ones is no matter there.
    silent = run(open_ways=everybody, called=set())
    assert question.control(parameters, silent).verdict == "pass"


def test_an_open_way_that_is_not_gone_in_the_control_is_none(question):
    """It did not take more than its cap, or did not even run: nothing was tried in the run."""
    parameters = read(question)
    everybody = {way.replace("_", "-") for way in WAYS}
    control = question.control(parameters, run(open_ways=everybody - {"driver-copy"}))
    assert control.verdict == "error"
    assert "driver-copy" in control.reason and "own-loader" not in control.reason
    there = run(open_ways=everybody)
    pods = {name: pod for name, pod in there.pods.items() if name != "own-lookup"}
    control = question.control(parameters, dataclasses.replace(there, pods=pods))
    assert control.verdict == "error" and "own-lookup: no pod" in control.reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"open_ways": OPEN | {"empty-environment"}}, {("stopped", "empty-environment")}),
        ({"called": {"own-loader"}}, {("shown", "driver-copy"), ("shown", "own-lookup")}),
        (  # docs are out of date
            {"open_ways": {"own-loader"}},
            {("shown", "driver-copy"), ("shown", "own-lookup")},
        ),
        (
            {"least": 100},  # who did not try was not stopped
            {("stopped", w.replace("_", "-")) for w in WAYS[:6]},
        ),
    ],
)
def test_what_does_not_hold(question, changes, expected):
    assert bad(question.checks(read(question), run(**changes))) == expected


@pytest.mark.parametrize("trial", [run(), run(least=100)])
def test_a_control_that_holds_proves_nothing(question, trial):
    assert question.control(read(question), trial).verdict == "error"


def test_a_pod_that_died_is_an_error(question):
    found = question.checks(read(question), Made(["own-loader"]).trial())
    assert {c.verdict for c in found} == {"error"}


@pytest.mark.parametrize(
    "values",
    [{"ways": []}, {"ways": ["own_loader"]}, {"ways": ["other_preload"] * 2}, {"gpumem": 100}],
)
def test_refused(question, values):
    with pytest.raises(InputError):
        read(question, **values)


def test_the_plan_says_what_each_pod_does(question):
    header, rows = question.rows(read(question))
    assert header == ("Pod", "Cap", "What it does", "Expected") and len(rows) == 9
    expected = {row[0]: row[3] for row in rows}
    assert expected["deepbind"] == "stopped" and expected["own-loader"].startswith("open")
    assert len({row[2] for row in rows}) == 9


def test_what_the_pods_set(question):
    plans = {plan.name: plan.containers[0].env for plan in question.plan(read(question))}
    assert plans["disable-variable"] == {"CUDA_DISABLE_CONTROL": "true"}
    assert plans["limit-variable"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "40960m"
    assert plans["own-loader"] == {}
