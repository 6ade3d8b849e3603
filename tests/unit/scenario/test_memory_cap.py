"""The question of memory caps: what holds, what does not, what its control must show."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, load_question
from testbed.units import MIB

from .conftest import ROOT
from .made import UUID, Made

CAPS = {"a": 20480, "b": 12288}
FILLS = ("native", "expandable_segments", "cudaMallocAsync", "race")


@pytest.fixture(scope="module")
def question():
    return load_question(ROOT / "scenarios" / "memory_cap")


def read(question, **values):
    return checked_parameters(question, {"pods": CAPS, **values})


def run(*, over=0, counted=0, peak=0, **changes):
    """Return a trial; ``over`` MiB above the caps, ``counted`` of them by the card alone."""
    made, now = Made(CAPS), 10.0
    for phase in FILLS:
        held = {pod: (cap + over) * MIB for pod, cap in CAPS.items()}
        made.count(now, now + 1.0, held={pod: value + peak * MIB for pod, value in held.items()})
        now += 2.0
        by_card = {pod: value + counted * MIB for pod, value in held.items()}
        for pod in CAPS:
            made.say(pod, "filled", now, phase, uuid=UUID, bytes=held[pod], processes=8)
            made.say(pod, "holding", now, phase)
        made.count(now + 0.25, now + 1.0, held=by_card)
        for pod in CAPS:
            made.say(pod, "released", now + 1.0, phase)
        made.count(now + 1.25, now + 2.0)
        now += 3.0
    for pod, cap in CAPS.items():
        grown = {"before": 424 * MIB, "peak": cap * MIB * 9 // 10, "after": 424 * MIB, "refused": 0}
        made.say(pod, "grown", now, "growth", uuid=UUID, **{**grown, **changes.get("grown", {})})
        for more in (False, True):
            error = "OutOfMemoryError" if more and over <= 0 else ""
            told = {"layers": 300 + more, "more": more, "error": error, "bytes": cap * MIB}
            made.say(pod, "model", now, "model", **{**told, **changes.get("model", {})})
    return made.trial()


def bad(checks):
    return {(c.name, c.reason) for c in checks if c.verdict != "pass"}


def test_what_holds_and_its_control(question):
    parameters = read(question)
    found = question.checks(parameters, run())
    assert bad(found) == set()
    assert {c.name for c in found} == set(question.meanings)
    control = question.control(parameters, run(over=3000))
    assert control.verdict == "pass", control.reason
    must = [c for c in control.checks if c.control == "fail"]
    assert len(must) == len(CAPS) * (2 * len(FILLS) + 1)
    assert {c.verdict for c in must} == {"fail"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"over": -1}, set()),
        ({"over": -4}, {("filled", "refused too early")}),
        ({"counted": -5}, {("card_bytes", "the card and the pod disagree")}),
        ({"counted": 5}, {("card_bytes", "above the cap")}),
        ({"peak": 1}, {("card_bytes", "above the cap")}),  # for a moment, before
        ({"grown": {"refused": 2}}, {("growth", "2 refusals below the cap")}),
        ({"grown": {"after": 500 * MIB}}, {("growth", "76 MiB did not come back")}),
        ({"grown": {"peak": 0}}, {("growth", "it did not grow")}),
        ({"model": {"error": ""}}, {("model_refused", "it was loaded")}),
        (
            {"model": {"error": "OutOfMemoryError"}},
            {("model_fits", "it was refused (OutOfMemoryError)")},
        ),
    ],
)
def test_what_does_not_hold(question, changes, expected):
    assert bad(question.checks(read(question), run(**changes))) == expected


@pytest.mark.parametrize(
    ("most", "least", "reason"),
    [(0, 0, ""), (0, -2, ""), (1, 0, "above the cap"), (0, -4, "refused too early")],
)
def test_the_worst_round_counts(question, most, least, reason):
    trial = run()
    for pod, cap in CAPS.items():
        for event in trial.pods[pod].containers[0].events:
            if event["event"] == "filled" and event["phase"] == "race":
                event |= {"most": (cap + most) * MIB, "least": (cap + least) * MIB, "rounds": 7}
    found = [c for c in question.checks(read(question, rounds=7), trial) if c.name == "filled"]
    raced = [c for c in found if c.variant == "race"]
    assert {c.reason for c in raced} == {reason}
    assert {c.source for c in raced} == {"workload, 8 processes, 7 rounds"}
    assert all(c.verdict == "pass" for c in found if c.variant != "race")


def test_a_control_that_holds_proves_nothing(question):
    control = question.control(read(question), run())
    assert control.verdict == "error" and "filled of a (race) held" in control.reason


def test_a_control_in_which_the_card_was_full_before(question):
    control = question.control(read(question), run(over=-500))
    assert control.verdict == "error" and "the card was full before" in control.reason


def test_a_pod_that_died_is_an_error(question):
    found = question.checks(read(question), Made(CAPS).trial())
    assert {c.verdict for c in found} == {"error"}


@pytest.mark.parametrize(
    "values",
    [
        {"pods": {}},
        {"pods": {"A": 20480}},
        {"pods": {"a": 1024}},
        {"pods": {"a": 8192}, "processes": 32},
        {"allocators": [], "processes": 0},
        {"ceiling_pct": 100},
        {"rounds": 0},
        {"growth_rounds": -1},
    ],
)
def test_refused(question, values):
    with pytest.raises(InputError):
        read(question, **values)


def test_parts_that_are_left_out(question):
    parameters = read(question, allocators=[], growth_rounds=0, models=False)
    assert parameters.phases == ("race",)
    assert {c.variant for c in question.checks(parameters, run())} == {"race"}
