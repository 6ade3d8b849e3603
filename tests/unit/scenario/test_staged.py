"""Questions about placement: what is played, how it is judged, what their controls must show."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from testbed.errors import InputError
from testbed.lab.kube import ApiError
from testbed.lab.scenario import staging, submission
from testbed.lab.scenario.cases import checked_parameters, load_parameters, load_question
from testbed.lab.wait import wait_until

from .conftest import ROOT
from .stagecluster import Cluster

CASES = {
    "placement": "policies",
    "init_containers": "peak",
    "quota": "percentages",
    "quota/cores": "cores",
}


class Step:
    def update(self, text):
        assert text


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """What does not come in this cluster at once never comes."""
    monkeypatch.setattr(staging, "FOLLOWS_S", 0.0)
    monkeypatch.setattr(staging, "DECIDED_S", 0.0)
    monkeypatch.setattr(submission, "wait_until", partial(wait_until, sleep=lambda _: None))


def opened(name):
    folder = ROOT / "scenarios" / name.partition("/")[0]
    question = load_question(folder)
    path = folder / f"{CASES[name]}.yaml"
    return question, checked_parameters(question, load_parameters(path))


def played(question, parameters, monkeypatch, *, control=False, broken=""):
    cluster = Cluster(broken)
    monkeypatch.setattr(staging, "ledger", cluster.ledger)
    plan = question.staging(parameters, control=control)
    trial = staging.stage(cluster, cluster, plan, mode="off" if control else "on", step=Step())
    assert not (cluster.pods or cluster.nodes or cluster.spaces), "everything is taken away"
    return trial


def failed(checks):
    return {check.name for check in checks if check.verdict == "fail"}


@pytest.mark.parametrize("name", CASES)
def test_the_case_holds_and_its_control_fails_where_it_must(name, monkeypatch):
    question, parameters = opened(name)
    trial = played(question, parameters, monkeypatch)
    assert not failed(question.checks(parameters, trial))
    alone = played(question, parameters, monkeypatch, control=True)
    control = question.control(parameters, alone)
    assert control.verdict == "pass", control.reason
    assert any(check.verdict == "fail" for check in control.checks)


@pytest.mark.parametrize("name", CASES)
def test_what_a_mapping_loses_on_its_way_does_not_matter(name, monkeypatch):
    """The runner hands a case to its notebook with sorted keys."""
    question, parameters = opened(name)
    kept = json.loads(json.dumps(msgspec.to_builtins(parameters), sort_keys=True))
    handed = checked_parameters(question, kept)
    assert not failed(question.checks(handed, played(question, handed, monkeypatch)))
    alone = played(question, handed, monkeypatch, control=True)
    assert question.control(handed, alone).verdict == "pass"


@pytest.mark.parametrize("name", CASES)
def test_a_control_that_is_the_run_proves_nothing(name, monkeypatch):
    question, parameters = opened(name)
    trial = played(question, parameters, monkeypatch)
    assert question.control(parameters, trial).verdict == "fail"


@pytest.mark.parametrize(
    ("name", "broken", "checks"),
    [
        ("placement", "policy", {"policy", "placed", "waits"}),
        ("placement", "books", {"books"}),
        ("placement", "reason", {"waits"}),
        ("init_containers", "peak", {"ledger", "decision"}),
        ("init_containers", "shrink", {"ledger", "decision"}),
        ("init_containers", "books", {"ledger"}),
        ("quota", "quota", {"final", "waits", "refused", "within"}),
        ("quota", "early", {"refused"}),
        # Then the pod waits, and moves up.
        ("quota/cores", "early", {"refused", "final"}),
        ("quota", "reason", {"waits"}),
    ],
)
def test_a_rule_that_does_not_work_is_seen(name, broken, checks, monkeypatch):
    question, parameters = opened(name)
    trial = played(question, parameters, monkeypatch, broken=broken)
    assert failed(question.checks(parameters, trial)) & checks, broken
    if broken in ("books", "reason", "early"):
        assert failed(question.checks(parameters, trial)) == checks


@pytest.mark.parametrize("name", CASES)
def test_a_trial_of_which_nothing_is_known_fails(name, monkeypatch):
    question, parameters = opened(name)
    trial = played(question, parameters, monkeypatch)
    silent = {key: replace(pod, containers=()) for key, pod in trial.pods.items()}
    for pods in ({}, silent):
        checks = question.checks(parameters, replace(trial, pods=pods))
        assert failed(checks) >= {"placement": {"placed", "waits"}, "quota": {"within", "final"},
                                  "init_containers": {"ledger", "decision"},
                                  }[name.partition("/")[0]]  # fmt: skip
        question.story(parameters, replace(trial, pods=pods))


@pytest.mark.parametrize("name", CASES)
def test_the_story_and_the_chart_tell_every_step(name, monkeypatch):
    question, parameters = opened(name)
    trial = played(question, parameters, monkeypatch)
    plan = question.staging(parameters, control=False)
    header, rows = question.story(parameters, trial)
    assert len(rows) == len(plan.moves) and {len(row) for row in rows} == {len(header)}
    sides = question.chart(parameters, trial, trial).sides
    lines = [line for side in sides for panel in side.panels for line in panel.lines]
    assert lines and all(len(line.times) == len(line.values) > 0 for line in lines)
    assert all(line.times == tuple(sorted(line.times)) for line in lines)


def test_the_heat_map_shows_the_cards_of_each_policy(monkeypatch):
    question, parameters = opened("placement")
    _, rows = question.story(parameters, played(question, parameters, monkeypatch))
    last = {row[0]: row for row in rows if row[1] == "d"}
    assert last["binpack"][2:10] == ("█▓ 86/70", "█▓ 86/70", *6 * ("   0/0",))
    whole = {row[0]: row for row in rows if row[1] == "whole"}
    assert "numa-1/0" in whole["numa"][-1]


def test_a_trial_that_breaks_leaves_nothing_behind(monkeypatch):
    question, parameters = opened("quota")
    cluster = Cluster()
    monkeypatch.setattr(staging, "ledger", cluster.ledger)

    def lost(*_, **__):
        raise ApiError("lost", status=500, reason="", message="lost")

    monkeypatch.setattr(staging, "set_quota", lost)
    with pytest.raises(ApiError):
        staging.stage(cluster, cluster, question.staging(parameters, control=False),
                      mode="on", step=Step())  # fmt: skip
    assert not (cluster.pods or cluster.nodes or cluster.spaces)


def test_links_are_looked_at_by_the_policy_that_names_them(monkeypatch):
    question, parameters = opened("placement")
    only = {"topology": msgspec.to_builtins(parameters.policies["topology"])}
    given = {**msgspec.to_builtins(parameters), "policies": only}
    linked = checked_parameters(question, given)
    story = question.story(linked, played(question, linked, monkeypatch))[1]
    outcomes = {row[1]: row[-1] for row in story}
    assert outcomes["a"] in ("topology-0/2", "topology-0/3")  # the worst linked
    assert outcomes["pair"] == "topology-0/0, topology-0/1"  # the best linked
    # Judged by other links, the same choice is not the best.
    other = checked_parameters(question, {**given, "links": {"0-2": 200, "0-1": 10}})
    trial = played(question, linked, monkeypatch)
    assert failed(question.checks(linked, trial)) == set()
    assert failed(question.checks(other, trial)) == {"policy"}


BAD = [
    ("placement", {"policies": {}}, "no policies"),
    ("placement", {"cards": 17}, "16 cards"),
    (
        "placement",
        {"order": ["whole"], "pods": {"whole": {"gpumem": 90000, "gpucores": 1}}},
        "no card has",
    ),
    (
        "placement",
        {"order": ["whole"], "pods": {"whole": {"gpumem": 9, "gpucores": 1, "cards": 5}}},
        "5 cards",
    ),
    ("placement", {"order": ["a"], "pods": {"a": {"gpumem": 9, "gpucores": 1}}}, "no pod whole"),
    ("placement", {"policies": {"x": {"card": "numa", "control_card": "numa"}}}, "the same"),
    ("placement", {"policies": {"x": {"card": "first", "control_card": "numa"}}}, "first"),
    ("placement", {"pods": {"A": {"gpumem": 9, "gpucores": 1}}}, "cannot be used"),
    ("placement", {"order": ["a", "whole"]}, "each pod once"),
    ("placement", {"links": {}}, "the case has none"),
    ("placement", {"links": {"0-9": 1}}, "link '0-9'"),
    ("placement", {"links": {"a-b": 1}}, "link 'a-b'"),
    (
        "placement",
        {"policies": {"x": {"card": "topology-aware,spread", "control_card": "numa"}}},
        "not judged",
    ),
    ("init_containers", {"steps": ["submit train"]}, "no step shows"),
    ("init_containers", {"steps": ["done train"]}, "cannot be played"),
    ("init_containers", {"steps": ["start train"]}, "not known"),
    ("init_containers", {"steps": ["submit train", "submit train"]}, "cannot be played"),
    ("init_containers", {"pods": {"train": {"apps": []}}}, "no app container"),
    ("quota", {"quota_mib": 200000}, "leaves it to chance"),
    ("quota", {"steps": ["submit fixed"]}, "keeps no pod away"),
    ("quota", {"steps": ["submit other"]}, "not known"),
    ("quota", {"pods": {"x": {"gpumem": 1, "percent": 1}}}, "one of them"),
    ("quota", {"quota_mib": 0}, "no quota"),
    ("quota", {"quota_cores": -1}, "no quota"),
    ("quota", {"pods": {"x": {"gpumem": 1, "gpucores": 100}}}, "0 to 99"),
]


@pytest.mark.parametrize(("name", "values", "words"), BAD, ids=lambda value: str(value)[:40])
def test_an_impossible_case_is_refused_before_anything_runs(name, values, words):
    question, parameters = opened(name)
    good = msgspec.to_builtins(parameters)
    with pytest.raises(InputError) as caught:
        checked_parameters(question, {**good, **values})
    assert words in caught.value.text()
