"""The question of noisy neighbours: the matrix, its bounds, and what its control must show."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, load_question

from .conftest import ROOT
from .made import UUID, Made

KINDS = ["storm", "long", "memory", "churn", "crash"]


@pytest.fixture(scope="module")
def question():
    return load_question(ROOT / "scenarios" / "noisy_neighbour")


def read(question, **values):
    return checked_parameters(question, {"kinds": KINDS, **values})


def run(share, *, refused=None, slower=None):
    """Return a trial in which the victim has ``share(phase)`` percent of the card."""
    made, now = Made(["victim", "neighbour"]), 10.0
    for pod in made.events:
        made.say(pod, "working", 1.0, uuid=UUID)
    steps = 0.0
    for phase in ["alone", *KINDS]:
        both = ["victim"] if phase == "alone" else ["victim", "neighbour"]
        for pod in both:
            made.say(pod, "released", now, phase)
        made.count(now, now + 10.0, share={"victim": share(phase), "neighbour": 40.0})
        for tick in range(41):
            time = now + tick * 0.25
            made.say("victim", "steps", time, phase, uuid=UUID, steps=round(steps))
            steps += share(phase) * 0.25 * 10 / (slower or {}).get(phase, 1.0)
        for pod in both:
            told = {"asked": 40, "refused": (refused or {}).get(phase, 0), "did": 5}
            made.say(pod, "worked", now + 10.0, phase, **told)
        now += 12.0
    return made.trial()


def without():
    """What a card without a limiter gives."""
    greedy = {"storm": 46.3, "long": 46.3}
    return run(lambda phase: greedy.get(phase, 95.0), refused={"memory": 30})


def bad(checks):
    return {(c.name, c.variant) for c in checks if c.verdict != "pass"}


def test_what_holds_and_its_control(question):
    parameters = read(question)
    found = question.checks(parameters, run(lambda phase: 30.0))
    assert bad(found) == set()
    assert {c.name for c in found} == set(question.meanings)
    control = question.control(parameters, without())
    assert control.verdict == "pass", control.reason
    assert {c.variant for c in control.checks if c.name == "slowdown" and c.control == "fail"} == {
        "storm",
        "long",
    }


def test_the_matrix_shows_both_sides_and_what_is_not_known(question):
    parameters = read(question)
    trial = run(lambda phase: 30.0)
    header, rows = question.comparison(parameters, trial, without())
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert list(found) == ["alone", *KINDS]
    storm = found["storm"]
    assert storm["Its share, with the limiter"] == "30.0 %"
    assert storm["Its share, without"] == "46.3 %"
    assert (storm["Slower, with the limiter"], storm["Slower, without"]) == ("1.00 x", "2.05 x")
    assert storm["Neighbour's share, with the limiter"] == "40.0 %"
    assert found["memory"]["Refusals, without"] == "30"
    assert found["alone"]["Neighbour's share, without"] == "-"
    header, rows = question.comparison(parameters, trial, None)
    assert not any("without" in name for name in header)
    _, rows = question.comparison(parameters, Made(["victim", "neighbour"]).trial(), None)
    assert "?" in rows[1]


def test_a_control_that_notices_nothing_proves_nothing(question):
    control = question.control(read(question), run(lambda phase: 30.0))
    assert control.verdict == "error"
    for name, variant in (
        ("share_card", "alone"),
        ("slowdown", "storm"),
        ("memory_kept", "memory"),
    ):
        assert f"{name} of victim ({variant}) held" in control.reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"share": lambda p: 27.5 if p == "long" else 30.0}, {("share_card", "long")}),
        (
            {"share": lambda p: 20.0 if p == "storm" else 30.0},
            {("share_card", "storm"), ("slowdown", "storm")},
        ),
        ({"share": lambda p: 33.0 if p == "churn" else 30.0}, {("share_card", "churn")}),
        # The card says that it had its share, its work went slower all the same.
        ({"share": lambda p: 30.0, "slower": {"crash": 1.3}}, {("slowdown", "crash")}),
        ({"share": lambda p: 30.0, "refused": {"memory": 1}}, {("memory_kept", "memory")}),
    ],
)
def test_what_is_noticed(question, changes, expected):
    share = changes.pop("share")
    assert bad(question.checks(read(question), run(share, **changes))) == expected


def test_a_pod_that_died_is_an_error(question):
    made = Made(["victim", "neighbour"])
    found = question.checks(read(question), made.trial())
    assert {c.verdict for c in found} == {"error"}
    assert question.control(read(question), made.trial()).verdict == "error"


@pytest.mark.parametrize(
    "values",
    [
        {"kinds": []},
        {"kinds": ["storm", "storm"]},
        {"victim": {"gpumem": 2048, "gpucores": 30}},
        {"victim": {"gpumem": 8192, "gpucores": 45}},  # an even part: no control
        {"neighbour": {"gpumem": 8192, "gpucores": 70}},
        {"neighbour": {"gpumem": 512, "gpucores": 50}},
        {"seconds": 1.0},
    ],
)
def test_refused(question, values):
    with pytest.raises(InputError):
        read(question, **values)


def test_the_neighbour_waits_while_the_victim_is_alone(question):
    victim, neighbour = question.plan(read(question))
    names = [[phase["name"] for phase in plan.containers[0].parameters["phases"]]
             for plan in (victim, neighbour)]  # fmt: skip
    assert names == [["alone", *KINDS], KINDS]
