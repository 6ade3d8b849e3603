"""The judgement of shares of compute, on trials made up in memory."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, load_question
from testbed.lab.scenario.record import case_verdict

from .conftest import ROOT, UUID, UUID2, make_trial

PAIR = {"a": {"gpumem": 30720, "gpucores": 50}, "b": {"gpumem": 20480, "gpucores": 30}}


@pytest.fixture(scope="module")
def question():
    return load_question(ROOT / "scenarios" / "co_location")


def read(question, pods=PAIR, **values):
    given = {"allocators": ["native"], "policy": "force", **values, "pods": pods}
    return checked_parameters(question, given)


def judge(question, parameters, **changes):
    """Return the checks of a run, and its control, by (name, pod, variant)."""
    trial = changes.pop("trial", None) or make_trial(parameters, **changes)
    free = make_trial(parameters, enforcement="off", cards=changes.get("cards"))
    checks = question.checks(parameters, trial, free)
    return {c.identity: c for c in checks}, question.control(parameters, free)


def bad(found):
    return {identity for identity, check in found.items() if check.verdict != "pass"}


def shares(question, parameters, **changes):
    """Return the shares of a limiter that works, with some of them changed."""
    scene_shares = []
    module = sys.modules[type(question).__module__]
    members = module.tenants(parameters)
    checks = module.share_checks
    for situation in ("alone", "together", "after"):
        found = {}
        for tenant in members:
            others = () if situation == "alone" else tuple(t for t in members if t is not tenant)
            if situation == "after":
                others = tuple(t for t in others if t.pod != parameters.kill)
            found[tenant.label] = checks.attainable(tenant, others, parameters.policy)
        scene_shares.append({**found, **changes.get(situation, {})})
    return tuple(scene_shares)


def test_shares_that_hold_pass_and_each_control_fails(question):
    parameters = read(question, kill="a")
    found, control = judge(question, parameters)
    assert bad(found) == set()
    assert {c.name for c in found.values()} <= set(question.meanings)
    by_pod = {(c.pod, c.variant, c.control) for c in found.values() if c.name == "share_card"}
    assert by_pod == {
        ("a", "alone", "fail"),
        ("a", "together", "any"),  # an even part, 46.3 %, is too near to it
        ("b", "alone", "fail"),
        ("b", "together", "fail"),
        ("b", "after", "fail"),
    }
    works = {(c.pod, c.variant) for c in found.values() if c.name == "share_work"}
    assert works == {(p, v) for p in "ab" for v in ("alone", "together")}
    freed = {(c.pod, c.variant) for c in found.values() if c.name == "freed"}
    assert freed == {("a", "memory")}
    assert control.verdict == "pass", control.reason
    outcomes = {c.identity: c.verdict for c in control.checks if c.name.startswith("share")}
    assert outcomes.pop(("share_card", "a", "together")) == "fail"  # by chance
    assert outcomes.pop(("share_work", "a", "together")) == "pass"
    assert set(outcomes.values()) == {"fail"}
    for check in found.values():
        if check.name.startswith(("share", "freed")):
            assert check.tolerance is not None and check.unit and check.source, check


@pytest.mark.parametrize("situation", ["alone", "together", "after"])
@pytest.mark.parametrize(
    ("pct", "card", "work"),
    [
        (30, True, True),
        (31.9, True, True),
        (28.1, True, True),
        (32.2, False, True),
        (27.8, False, True),
        (34.3, False, False),
        (25.7, False, False),
        (100, False, False),
        (0.5, False, False),
    ],
)
def test_a_share_holds_within_its_tolerance_in_each_situation(question, situation, pct, card, work):
    parameters = read(question, kill="a")
    found, _ = judge(
        question, parameters, shares=shares(question, parameters, **{situation: {"b": pct}})
    )
    expected = set() if card else {("share_card", "b", situation)}
    if not work and situation != "after":
        expected.add(("share_work", "b", situation))
    assert bad(found) == expected
    if not card:
        reason = found["share_card", "b", situation].reason
        assert reason == ("more than its share" if pct > 30 else "less than its share")


def test_without_the_control_the_rate_alone_is_not_known(question):
    parameters = read(question)
    checks = question.checks(parameters, make_trial(parameters))
    assert {c.verdict for c in checks if c.name == "share_work"} == {"skipped"}
    assert case_verdict(checks, None, asserts_limit=True) == "error"


def test_a_limiter_that_does_nothing_fails_where_the_control_must(question):
    parameters = read(question, kill="a")
    free = make_trial(parameters, enforcement="off")
    checks = question.checks(parameters, free, free)
    must = {c.identity for c in checks if c.control == "fail"}
    assert must and {c.identity for c in checks if c.verdict == "fail"} >= must


def test_a_control_in_which_a_share_holds_is_an_error(question):
    parameters = read(question)
    held = make_trial(parameters)
    control = question.control(parameters, held)
    assert control.verdict == "error"
    assert "share_card of b (together) held its share" in control.reason


@pytest.mark.parametrize(
    ("situation", "pod", "pct", "figure"),
    [
        ("alone", "a", 0, "had 0 %, where a card without a limiter gives 100 %"),
        ("alone", "a", 60, "had 60 %"),
        ("together", "b", 80, "had 80 %, where a card without a limiter gives 46 %"),
        ("together", "b", 0, "had 0 %"),
        ("after", "b", 0, "had 0 %"),
        ("together", "a", 20, "had 20 %"),
    ],
)
def test_a_control_that_fails_for_another_reason_is_an_error(question, situation, pod, pct, figure):
    """A card on which nothing runs, or a limiter that is still there."""
    parameters = read(question, kill="a")
    even = {
        "alone": {"a": 100, "b": 100},
        "together": {"a": 46.3, "b": 46.3},
        "after": {"b": 100},
    }
    even[situation][pod] = pct
    control = question.control(
        parameters, make_trial(parameters, enforcement="off", shares=tuple(even.values()))
    )
    assert control.verdict == "error"
    assert f"share_card of {pod} ({situation}) {figure}" in control.reason


def test_a_control_whose_card_was_not_seen_is_an_error(question):
    parameters = read(question)
    free = make_trial(parameters, enforcement="off")
    blind = replace(free, samples=tuple(replace(s, busy_ns=None) for s in free.samples))
    control = question.control(parameters, blind)
    assert control.verdict == "error" and "too little" in control.reason


def test_processes_of_no_pod_make_shares_an_error(question):
    parameters = read(question)
    trial = make_trial(parameters)
    stranger = replace(trial.samples[0], pid=9, pod_uid="unknown", container="")
    checks = question.checks(parameters, replace(trial, samples=(*trial.samples, stranger)), trial)
    assert {c.verdict for c in checks if c.name == "share_card"} == {"error"}


@pytest.mark.parametrize("kind", ["released", "worked", "steps"])
def test_a_workload_that_told_too_little_is_an_error(question, kind):
    parameters = read(question)
    trial = make_trial(parameters)
    (only,) = trial.pods["a"].containers
    kept = tuple(e for e in only.events if (e["event"], e.get("phase")) != (kind, "together"))
    pod = replace(
        trial.pods["a"], containers=(replace(only, events=kept, problem="pod a Failed: boom"),)
    )
    found, _ = judge(question, parameters, trial=replace(trial, pods={**trial.pods, "a": pod}))
    check = found["share_work", "a", "together"]
    assert check.verdict == "error"
    assert ("boom" if kind != "steps" else "too few steps") in check.reason


@pytest.mark.parametrize(
    ("pods", "kind"),
    [
        ({"a": {"gpumem": 30720, "gpucores": 30}, "b": {"gpumem": 30720, "gpucores": 70}}, 9.4),
        (
            {
                "a": {"gpumem": 20480, "gpucores": 20},
                "b": {"gpumem": 20480, "gpucores": 30},
                "c": {"gpumem": 20480, "gpucores": 50},
            },
            9.4,
        ),
    ],
)
def test_what_switching_costs_is_allowed_to_the_largest_alone(question, pods, kind):
    parameters = read(question, pods)
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    *small, large = pods
    assert found["share_card", large, "together"].tolerance == kind
    assert "can be had beside the others" in found["share_card", large, "together"].source
    assert {found["share_card", pod, "together"].tolerance for pod in small} == {2.0}
    least = pods[large]["gpucores"] - kind
    for pct, verdict in ((least + 0.2, "pass"), (least - 0.2, "fail")):
        given = shares(question, parameters, together={large: pct})
        found, _ = judge(question, parameters, shares=given)
        assert found["share_card", large, "together"].verdict == verdict


# --- policy default: alone a pod runs free -------------------------------------------
BESIDE = {"a": {"gpumem": 30720, "gpucores": 60}, "b": {"gpumem": 20480, "gpucores": 30}}


def test_under_default_a_lone_pod_runs_free_and_is_held_beside_others(question):
    parameters = read(question, BESIDE, policy="default", kill="a")
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    assert {c.variant for c in found.values() if c.name == "share_card"} == {"together"}
    assert {(c.pod, c.variant) for c in found.values() if c.name == "freed"} == {
        ("a", "memory"),
        ("b", "share"),
    }
    assert {c.pod for c in found.values() if c.name == "lone_free"} == {"a", "b"}


@pytest.mark.parametrize(
    ("situation", "pct", "wrong"),
    [
        ("alone", 98.9, ("lone_free", "a", "")),
        ("alone", 60, ("lone_free", "a", "")),
        ("alone", 99.2, None),
        ("after", 96, ("freed", "b", "share")),
        ("after", 30, ("freed", "b", "share")),
        ("after", 98, None),
    ],
)
def test_a_lone_pod_that_is_held_back_under_default(question, situation, pct, wrong):
    parameters = read(question, BESIDE, policy="default", kill="a")
    pod = "a" if situation == "alone" else "b"
    given = shares(question, parameters, **{situation: {pod: pct}})
    found, _ = judge(question, parameters, shares=given)
    assert bad(found) == ({wrong} if wrong else set())


def test_under_disable_nothing_is_held(question):
    parameters = read(question, policy="disable")
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    assert not any(c.name.startswith("share") for c in found.values())
    assert sum(c.name == "lone_free" for c in found.values()) == 2


def test_a_neighbour_without_a_share_takes_what_is_left(question):
    pods = {"a": {"gpumem": 30720, "gpucores": 30}, "b": {"gpumem": 20480}}
    parameters = read(question, pods)
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    assert {c.pod for c in found.values() if c.name.startswith("share")} == {"a"}


# --- a kill --------------------------------------------------------------------------
def held_for(trial, seconds):
    """Return the trial with the killed pod's memory on the card for longer."""
    deleted = trial.pods["a"].deleted
    last = max((s for s in trial.samples if s.pod_uid == "uid-a"), key=lambda s: s.time)
    times = {s.time for s in trial.samples if last.time < s.time <= deleted + seconds}
    more = tuple(replace(last, time=time) for time in times)
    return replace(trial, samples=(*trial.samples, *more))


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(0, "pass"), (4.5, "pass"), (5.2, "fail"), (60, "fail")]
)
def test_what_a_killed_pod_held_is_free_in_time(question, seconds, verdict):
    parameters = read(question, kill="a")
    trial = held_for(make_trial(parameters), seconds)
    found, _ = judge(question, parameters, trial=trial)
    check = found["freed", "a", "memory"]
    assert check.verdict == verdict, check
    if 0 < seconds < 60:
        assert seconds <= check.card <= seconds + 0.3
    assert ("still counted" in check.reason) == (seconds == 60)


def test_a_kill_that_did_not_come_is_an_error(question):
    parameters = read(question, kill="a")
    trial = make_trial(parameters)
    pods = {**trial.pods, "a": replace(trial.pods["a"], deleted=None)}
    found, _ = judge(question, parameters, trial=replace(trial, pods=pods))
    assert found["freed", "a", "memory"].verdict == "error"
    assert found["share_card", "b", "after"].verdict == "error"


def test_memory_that_was_never_seen_was_not_freed(question):
    parameters = read(question, kill="a")
    trial = make_trial(parameters)
    kept = tuple(s for s in trial.samples if s.pod_uid != "uid-a")
    found, _ = judge(question, parameters, trial=replace(trial, samples=kept))
    assert found["freed", "a", "memory"].verdict == "error"


# --- several containers, several cards -----------------------------------------------
def test_each_container_of_a_pod_has_its_own_limits(question):
    containers = {
        "main": {"gpumem": 20480, "gpucores": 40},
        "side": {"gpumem": 10240, "gpucores": 20},
    }
    parameters = read(question, {"a": {"containers": containers}})
    (plan,) = question.plan(parameters)
    assert [c.name for c in plan.containers] == ["main", "side"]
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    assert {c.pod for c in found.values()} == {"a/main", "a/side", "a", ""}
    # One container that takes the other's part is found, though their sum is the same.
    given = shares(question, parameters, together={"a/main": 35, "a/side": 25})
    found, _ = judge(question, parameters, shares=given)
    assert {i for i in bad(found) if i[0] == "share_card"} == {
        ("share_card", "a/main", "together"),
        ("share_card", "a/side", "together"),
    }
    trial = make_trial(parameters, {"a/main": 20480 + 10, "a/side": 10240 - 10})
    found, _ = judge(question, parameters, trial=trial)
    assert {(i[0], i[1]) for i in bad(found)} == {
        ("memory_cap", "a/main"),
        ("memory_cap", "a/side"),
        ("card_bytes", "a/main"),
    }


def test_a_pod_with_two_cards_has_its_limits_on_each(question):
    parameters = read(question, {"a": {"gpumem": 30720, "gpucores": 50, "gpu": 2}})
    assert question.needs(parameters) == 2
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    variants = {c.variant for c in found.values() if c.name == "share_card"}
    assert variants == {"alone, card 0", "alone, card 1"}
    assert ("memory_cap", "a", "native, card 1") in found
    trial = make_trial(parameters)
    spoilt = tuple(
        replace(s, busy_ns=s.busy_ns * 2) if s.uuid == UUID2 else s for s in trial.samples
    )
    found, _ = judge(question, parameters, trial=replace(trial, samples=spoilt))
    assert bad(found) == {("share_card", "a", "alone, card 1")}


APART = {"a": (UUID,), "b": (UUID2,)}


@pytest.mark.parametrize("policy", ["force", "default"])
def test_pods_on_cards_of_their_own_do_not_disturb_each_other(question, policy):
    parameters = read(question, BESIDE, policy=policy, apart=True)
    assert question.needs(parameters) == 2
    found, control = judge(question, parameters, cards=APART)
    assert bad(found) == set() and control.verdict == "pass"
    assert {c.pod for c in found.values() if c.name == "undisturbed"} == {"a", "b"}
    assert any(c.name == "lone_free" for c in found.values()) == (policy == "default")
    given = make_trial(parameters, cards=APART)
    slow = shares(question, parameters, together={"a": 50 if policy == "force" else 90})
    given = make_trial(parameters, cards=APART, shares=slow)
    found, _ = judge(question, parameters, trial=given, cards=APART)
    assert found["undisturbed", "a", ""].verdict == "fail"


def test_pods_that_were_to_lie_apart_and_do_not_are_an_error(question):
    parameters = read(question, BESIDE, policy="default", apart=True)
    found, _ = judge(question, parameters)
    assert found["undisturbed", "a", ""].verdict == "error"
    assert found["placement", "", ""].reason == "a and b share a card"


def test_pods_that_were_to_share_a_card_and_do_not_fail(question):
    parameters = read(question)
    found, _ = judge(question, parameters, cards=APART)
    assert bad(found) == {("placement", "", "")}
    assert found["placement", "", ""].reason == "a and b share no card"
    for plan in question.plan(parameters):
        assert plan.annotations == {"hami.io/gpu-scheduler-policy": "binpack"}


def test_cores_without_memory_need_no_memory_part(question):
    parameters = read(question, {"a": {"gpucores": 40}})
    (plan,) = question.plan(parameters)
    (container,) = plan.containers
    assert container.parameters["allocators"] == []
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    assert {c.name for c in found.values()} == {"share_card", "share_work", "annotations"}
    assert {c.name for c in found.values()} <= set(question.meanings)


def test_memory_without_cores_needs_no_compute_part(question):
    parameters = read(question, {"a": {"gpumem": 4096}}, policy="default")
    (plan,) = question.plan(parameters)
    assert plan.containers[0].parameters["phases"] == []
    found, control = judge(question, parameters)
    assert bad(found) == set() and control.verdict == "pass"
    assert not any(c.name.startswith("share") for c in found.values())


# --- hardware ------------------------------------------------------------------------
@pytest.mark.parametrize(("off", "verdict"), [(4, "pass"), (6, "fail")])
def test_on_hardware_utilisation_tells_with_its_own_tolerance(question, off, verdict):
    parameters = read(question)
    trial = make_trial(parameters)
    labels = {"uid-a": 50.0, "uid-b": 30.0 + off}
    samples = tuple(
        replace(s, busy_ns=None, utilization_pct=labels[s.pod_uid]) for s in trial.samples
    )
    found, _ = judge(question, parameters, trial=replace(trial, samples=samples, source="nvml"))
    check = found["share_card", "b", "together"]
    assert (check.verdict, check.tolerance) == (verdict, 5.0)
    assert "utilization" in check.source and "nvml" in check.source


@pytest.mark.parametrize("policy", ["force", "default"])
def test_a_driver_that_tells_nothing_of_processes_leaves_it_to_the_work(question, policy):
    def silent(trial):
        samples = tuple(replace(s, busy_ns=None) for s in trial.samples)
        return replace(trial, samples=samples, source="nvml")

    parameters = read(question, BESIDE, policy=policy, kill="a")
    free = silent(make_trial(parameters, enforcement="off"))
    found = {
        c.identity: c for c in question.checks(parameters, silent(make_trial(parameters)), free)
    }
    for check in found.values():
        told_by_card = check.name == "share_card" or check.variant == "share"
        assert check.verdict == ("skipped" if told_by_card else "pass"), check
        assert not told_by_card or check.control != "fail"
    control = question.control(parameters, free)
    assert control.verdict == "pass", control.reason
    # The work alone must tell then, in the control as well.
    held = silent(make_trial(parameters))
    assert question.control(parameters, held).verdict == "error"
    # One pod of which nothing is told, where others are, is no such driver.
    partly = replace(
        free,
        samples=tuple(
            replace(s, utilization_pct=50.0) if s.pod_uid == "uid-b" else s for s in free.samples
        ),
    )
    assert question.control(parameters, partly).verdict == "error"


# --- what no control could tell --------------------------------------------------------
@pytest.mark.parametrize(
    ("pods", "values"),
    [
        (PAIR, {"policy": "default"}),  # a would have 46 % of the card without the limiter
        ({"a": {"gpumem": 4096, "gpucores": 97}}, {}),
        (
            {n: {"gpumem": 4096, "gpucores": c} for n, c in (("a", 20), ("b", 30), ("c", 50))},
            {"policy": "default"},
        ),
    ],
)
def test_a_share_that_no_control_could_fail_is_refused(question, pods, values):
    with pytest.raises(InputError, match="cannot be checked") as caught:
        read(question, pods, **values)
    assert "policy: force" in caught.value.hint


def test_the_policy_reaches_the_pod_as_users_set_it(question):
    for policy, env in (
        ("force", {"GPU_CORE_UTILIZATION_POLICY": "force"}),
        ("disable", {"GPU_CORE_UTILIZATION_POLICY": "disable"}),
        ("default", {}),
    ):
        parameters = read(question, BESIDE, policy=policy)
        for plan in question.plan(parameters):
            assert plan.containers[0].env == env


def test_the_chart_shows_memory_and_shares_with_their_limits(question):
    parameters = read(question, kill="a")
    trial, free = make_trial(parameters), make_trial(parameters, enforcement="off")
    chart = question.chart(parameters, trial, free)
    for side in chart.sides:
        panels = {panel.quantity: panel for panel in side.panels}
        assert set(panels) == {"memory", "compute"}
        assert {c.label: c.value for c in panels["compute"].caps} == {"a": 50, "b": 30}
        most = {line.label: max(v or 0 for v in line.values) for line in panels["compute"].lines}
        assert most["a"] == pytest.approx(100 if side.control else 50, abs=3)
        names = [phase.name for phase in side.phases]
        assert names[-4:] == ["alone-a", "alone-b", "together", "kill"]
