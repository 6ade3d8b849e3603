"""The judgement of the co-location question, on trials made up in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.cases import checked_parameters, find_cases, load_parameters
from testbed.lab.scenario.pods import check_users, pod_manifest
from testbed.lab.scenario.question import Sample
from testbed.lab.scenario.record import case_verdict
from testbed.stack import names
from testbed.units import MIB

from .conftest import ROOT, UUID, make_trial

AT_CAP = {"a": 30720, "b": 20480}


def verdicts(checks, name):
    return {(check.pod, check.verdict) for check in checks if check.name == name}


def change(trial, pod, *, events=None, **changes):
    """Return the trial with one pod's trace changed."""
    if events is not None:
        (only,) = trial.pods[pod].containers
        changes["containers"] = (replace(only, events=tuple(events)),)
    return replace(trial, pods={**trial.pods, pod: replace(trial.pods[pod], **changes)})


def edit_events(trial, pod, kind, **fields):
    events = tuple({**e, **fields} if e["event"] == kind else e for e in trial.pods[pod].events)
    return change(trial, pod, events=events)


def drop_events(trial, pod, kind):
    return change(trial, pod, events=tuple(e for e in trial.pods[pod].events if e["event"] != kind))


def test_pods_at_their_caps_pass(co_location):
    trial = make_trial(co_location.parameters, AT_CAP)
    checks = co_location.question.checks(co_location.parameters, trial)
    assert {c.verdict for c in checks} == {"pass", "skipped"}
    # What a pod does alone and unlimited is not known before the control.
    assert {c.name for c in checks if c.verdict == "skipped"} == {"share_work"}
    # 4 allocators x (memory_cap, card_bytes, survives) + visible, annotations; two pods
    others = [c for c in checks if not c.name.startswith(("share", "freed", "placement"))]
    assert len(others) == 2 * (4 * 3 + 2)


@pytest.mark.parametrize(
    ("used", "expected"),
    [(30720, "pass"), (30718, "pass"), (30717.9, "fail"), (30720.1, "fail"), (30722, "fail")],
)
def test_the_cap_holds_from_one_granule_below_to_the_byte(co_location, used, expected):
    trial = edit_events(
        make_trial(co_location.parameters, AT_CAP),
        "a",
        "filled",
        bytes=int(used * MIB),
        refused=True,
    )
    checks = co_location.question.checks(co_location.parameters, trial)
    assert verdicts(checks, "memory_cap") == {("a", expected), ("b", "pass")}


def test_a_pod_that_was_never_refused_fails(co_location):
    trial = edit_events(make_trial(co_location.parameters, AT_CAP), "b", "filled", refused=False)
    checks = co_location.question.checks(co_location.parameters, trial)
    assert verdicts(checks, "memory_cap") == {("a", "pass"), ("b", "fail")}


def test_the_card_counts_more_than_the_pod(co_location):
    trial = make_trial(co_location.parameters, {"a": 30700, "b": 20480})
    more = tuple(
        replace(s, bytes=s.bytes + 4 * MIB) if s.pod_uid == "uid-a" else s for s in trial.samples
    )
    checks = co_location.question.checks(co_location.parameters, replace(trial, samples=more))
    assert ("a", "fail") in verdicts(checks, "card_bytes")
    assert "disagree" in {c.reason.split("the card and the pod ")[-1] for c in checks}


def test_one_sample_below_what_the_pod_holds_fails(co_location):
    """The card must agree for as long as the pod is full, not at its peak alone."""
    trial = make_trial(co_location.parameters, AT_CAP)
    low = Sample(
        time=101.6, uuid=UUID, pid=40, pod_uid="uid-a", container="main", bytes=30716 * MIB
    )
    checks = co_location.question.checks(
        co_location.parameters, replace(trial, samples=(*trial.samples, low))
    )
    failed = [c for c in checks if c.verdict == "fail"]
    assert [(c.name, c.pod, c.card) for c in failed] == [("card_bytes", "a", 30716)]


def test_a_tick_that_was_read_before_the_pod_was_full_says_nothing(co_location):
    """A tick's time is when it was stored; on a busy machine that is long after its reading."""
    trial = make_trial(co_location.parameters, AT_CAP)
    [full] = [
        event["time"]
        for event in trial.pods["a"].events
        if event["event"] == "holding" and event["phase"] == "native"
    ]
    early = Sample(
        time=full + 0.001, uuid=UUID, pid=40, pod_uid="uid-a", container="main", bytes=30120 * MIB
    )
    checks = co_location.question.checks(
        co_location.parameters, replace(trial, samples=(early, *trial.samples))
    )
    assert [c for c in checks if c.verdict == "fail"] == []


def test_one_sample_above_the_cap_fails_even_if_the_rest_hold(co_location):
    trial = make_trial(co_location.parameters, AT_CAP)
    peak = Sample(
        time=100.5, uuid=UUID, pid=40, pod_uid="uid-a", container="main", bytes=30722 * MIB
    )
    checks = co_location.question.checks(
        co_location.parameters, replace(trial, samples=(*trial.samples, peak))
    )
    failed = [c for c in checks if c.verdict == "fail"]
    assert [(c.name, c.pod, c.variant) for c in failed] == [("card_bytes", "a", "uncached")]
    assert failed[0].card == 30722


def test_no_sample_while_full_is_an_error_not_a_pass(co_location):
    trial = replace(make_trial(co_location.parameters, AT_CAP), samples=())
    checks = co_location.question.checks(co_location.parameters, trial)
    assert verdicts(checks, "card_bytes") == {("a", "error"), ("b", "error")}


def test_bytes_of_no_pod_are_an_error(co_location):
    trial = make_trial(co_location.parameters, AT_CAP)
    stranger = Sample(time=101.3, uuid=UUID, pid=9, pod_uid="unknown", container="", bytes=MIB)
    checks = co_location.question.checks(
        co_location.parameters, replace(trial, samples=(*trial.samples, stranger))
    )
    assert verdicts(checks, "card_bytes") == {("a", "error"), ("b", "error")}


@pytest.mark.parametrize("time", [0, -1])
def test_one_interface_that_tells_the_whole_card_once_fails(co_location, time):
    trial = make_trial(co_location.parameters, AT_CAP)
    events = [dict(e) for e in trial.pods["a"].events]
    visible = [e for e in events if e["event"] == "visible"][time]
    visible["sizes"] = {**visible["sizes"], "nvml_total": 81920 * MIB}
    checks = co_location.question.checks(
        co_location.parameters, change(trial, "a", events=tuple(events))
    )
    assert verdicts(checks, "visible_size") == {("a", "fail"), ("b", "pass")}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"equal": False}, "different"),
        ({"again": 425 * MIB}, "not counted"),
        ({"freed_to": 30720 * MIB, "again": 30976 * MIB}, "given back"),
    ],
)
def test_a_pod_that_does_not_survive(co_location, fields, word):
    trial = edit_events(make_trial(co_location.parameters, AT_CAP), "a", "survived", **fields)
    checks = co_location.question.checks(co_location.parameters, trial)
    assert verdicts(checks, "survives") == {("a", "fail"), ("b", "pass")}
    assert any(word in c.reason for c in checks)


@pytest.mark.parametrize("kind", ["filled", "holding", "released", "visible", "survived"])
def test_a_missing_event_is_an_error(co_location, kind):
    trial = drop_events(make_trial(co_location.parameters, AT_CAP), "a", kind)
    checks = co_location.question.checks(co_location.parameters, trial)
    control = co_location.question.control(
        co_location.parameters, make_trial(co_location.parameters, {"a": 33792, "b": 22528})
    )
    assert case_verdict(checks, control, asserts_limit=True) == "error"
    assert "error" in {c.verdict for c in checks}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("  File x\nAcceleratorError: CUDA error: out of memory\nSearch for it\n", "out of memory"),
        ("", "ended with -9"),
    ],
)
def test_a_workload_that_failed_says_why(co_location, text, why):
    """Also one that was killed and said nothing."""
    trial = drop_events(make_trial(co_location.parameters, AT_CAP), "a", "survived")
    event = {"event": "error", "phase": "native", "time": 1.0, "code": -9, "text": text}
    trial = change(trial, "a", events=(*trial.pods["a"].events, event))
    checks = co_location.question.checks(co_location.parameters, trial)
    (check,) = (c for c in checks if (c.name, c.pod, c.variant) == ("survives", "a", "native"))
    assert check.verdict == "error" and why in check.reason


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        (names.POD_ALLOCATED, f"{UUID},NVIDIA,30721,50:;", "promised"),
        (names.POD_ALLOCATED, "GPU-other,NVIDIA,30720,50:;", "not registered"),
        (names.POD_ALLOCATED, "", "0 devices"),
        (names.POD_ALLOCATED, "garbage;", "cannot be read"),
        (names.POD_TO_ALLOCATE, f"{UUID},NVIDIA,30720,50:;", "not used up"),
        (names.POD_BIND_PHASE, "allocating", "bind-phase"),
        (names.POD_NODE, "n2", "not n1"),
    ],
)
def test_annotations_that_contradict(co_location, key, value, word):
    trial = make_trial(co_location.parameters, AT_CAP)
    pod = trial.pods["a"].object
    notes = {**pod["metadata"]["annotations"], key: value}
    wrong = {**pod, "metadata": {**pod["metadata"], "annotations": notes}}
    checks = co_location.question.checks(co_location.parameters, change(trial, "a", object=wrong))
    assert verdicts(checks, "annotations") == {("a", "fail"), ("b", "pass")}
    assert any(word in c.reason for c in checks)


def test_a_pod_that_the_ledger_does_not_know(co_location):
    trial = replace(make_trial(co_location.parameters, AT_CAP), ledger={})
    checks = co_location.question.checks(co_location.parameters, trial)
    assert verdicts(checks, "annotations") == {("a", "fail"), ("b", "fail")}


def test_the_control_must_pass_its_caps(co_location):
    free = make_trial(co_location.parameters, {"a": 33792, "b": 22528}, "off")
    control = co_location.question.control(co_location.parameters, free)
    assert control.verdict == "pass"
    assert {c.verdict for c in control.checks if c.control == "fail"} == {"fail"}


@pytest.mark.parametrize("used", [AT_CAP, {"a": 33792, "b": 20480}, {"a": 100, "b": 22528}])
def test_a_control_that_holds_a_cap_is_an_error(co_location, used):
    control = co_location.question.control(
        co_location.parameters, make_trial(co_location.parameters, used, "off")
    )
    assert control.verdict == "error"


def test_a_control_that_fails_below_the_cap_is_an_error(co_location):
    """It must fail for the reason that it is run for: bytes above the cap."""
    low = make_trial(co_location.parameters, {"a": 100, "b": 22528}, "off")
    more = tuple(
        replace(s, bytes=s.bytes + 4 * MIB) if s.pod_uid == "uid-a" else s for s in low.samples
    )
    control = co_location.question.control(co_location.parameters, replace(low, samples=more))
    assert {c.verdict for c in control.checks if c.name == "memory_cap"} == {"fail"}
    assert control.verdict == "error" and "of a did not pass its cap" in control.reason
    # The caps of the case fill the card: nobody can pass his there without taking another's.
    assert "memory_cap of a did not pass its cap: the card was full" in control.reason
    assert "of b" not in control.reason


def test_a_control_without_samples_is_an_error(co_location):
    free = make_trial(co_location.parameters, {"a": 33792, "b": 22528}, "off")
    control = co_location.question.control(co_location.parameters, replace(free, samples=()))
    assert control.verdict == "error" and "took no sample" in control.reason


@pytest.mark.parametrize(
    "values",
    [
        {"podz": {}},
        {"pods": {}},
        {"pods": {"a": {"gpumem": "much"}}},
        {"pods": {"a": {"gpumem": 30720, "cores": 5}}},
        {"pods": {"a": {"gpumem": 10}}},
        {"pods": {"a": {"gpumem": 30720, "gpu": 17}}},
        {"pods": {"a": {}}},
        {"pods": {"a": {"gpumem": 30720, "containers": {"m": {"gpumem": 2048}}}}},
        {"pods": {"a": {"containers": {"m": {"gpumem": 20}}}}},
        {"pods": {"a": {"containers": {"M": {"gpumem": 2048}}}}},
        {"pods": {"a": {"gpumem": 30720}}, "kill": "a"},
        {"pods": {"a": {"gpumem": 30720}, "b": {"gpumem": 30720}}, "kill": "c"},
        {"pods": {"a": {"gpumem": 30720}, "b": {"gpumem": 30720}}, "kill": "a"},
        {"pods": {"a": {"gpumem": 30720}}, "policy": "strict"},
        {"pods": {"a": {"gpumem": 30720, "gpucores": 50}}, "alone_seconds": 1},
        {"pods": {"a": {"gpumem": 30720, "gpucores": 50}}, "together_seconds": 1},
        {"pods": {"a": {"gpumem": 30720, "gpucores": 101}}},
        {"pods": {"A!": {"gpumem": 30720}}},
        {"pods": {"é": {"gpumem": 30720}}},
        {"pods": {"a": {"gpumem": 30720, "run_as_user": -1}}},
        {"pods": {"a": {"gpumem": 30720}}, "allocators": ["magic"]},
        {"pods": {"a": {"gpumem": 30720}}, "allocators": []},
        {"pods": {"a": {"gpumem": 30720}}, "ceiling_pct": 100},
        {"pods": {"a": {"gpumem": 30720}}, "hold_seconds": 0},
    ],
)
def test_bad_parameters_are_refused_before_anything_runs(co_location, values):
    with pytest.raises(InputError):
        checked_parameters(co_location.question, values)


def test_a_mistyped_name_is_answered_with_the_names_of_all_levels(co_location):
    with pytest.raises(InputError, match="gpumen") as caught:
        checked_parameters(co_location.question, {"pods": {"a": {"gpumen": 30720}}})
    assert "pods {gpumem, gpu, " in caught.value.hint
    assert ", hold_seconds" in caught.value.hint


def test_another_user_needs_a_range_of_ids(co_location):
    values = {"pods": {"a": {"gpumem": 4096, "run_as_user": 1000}, "b": {"gpumem": 4096}}}
    parameters = checked_parameters(co_location.question, values)
    plans = co_location.question.plan(parameters)
    specs = [pod_manifest("ns", plan, image="i")["spec"] for plan in plans]
    assert specs[0]["securityContext"] == {"runAsUser": 1000, "runAsGroup": 1000}
    assert "securityContext" not in specs[1]
    check_users(plans, id_range=True)
    check_users(plans[1:], id_range=False)
    with pytest.raises(InputError, match=r"another user than 0: a \(1000\)"):
        check_users(plans, id_range=False)


def test_the_ceiling_lies_above_the_cap(co_location):
    for plan in co_location.question.plan(co_location.parameters):
        (container,) = plan.containers
        assert container.parameters["ceiling_mib"] > int(container.limits[names.RESOURCE_MEMORY])


def test_cases_are_found_by_pattern_question_and_path():
    root = ROOT / "scenarios"
    everything = {str(c) for c in find_cases(root)}
    assert "co_location/a100-example" in everything
    for pattern in ("co_location/*", "co_location", str(root / "co_location/a100-example.yaml")):
        assert "co_location/a100-example" in {str(c) for c in find_cases(root, (pattern,))}
    with pytest.raises(InputError, match="no case matches"):
        find_cases(root, ("nothing/here",))
    with pytest.raises(InputError):
        find_cases(root / "nowhere")


def test_who_names_no_case_is_told_which_there_are():
    root = ROOT / "scenarios"
    with pytest.raises(InputError) as refused:
        find_cases(root, ("co_location/three-pots",))
    assert "did you mean co_location/three-pods?" in refused.value.hint
    assert "memory_cap/" not in refused.value.hint  # the question was right
    for path in ("./x.yaml", "/nowhere/x.yml", "x.yaml"):
        with pytest.raises(InputError, match=f"no parameter file {path}"):
            find_cases(root, (path,))


def test_a_parameter_file_that_lies_elsewhere_is_told_where_to_go(tmp_path):
    root, elsewhere = ROOT / "scenarios", tmp_path / "mine.yaml"
    elsewhere.write_text("pods: {}\n")
    with pytest.raises(InputError, match="lies beside no question") as refused:
        find_cases(root, (str(elsewhere),))
    assert str(root / "co_location") in refused.value.hint


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "", "word"])
def test_a_parameter_file_that_is_none(tmp_path, content):
    path = tmp_path / "x.yaml"
    path.write_text(content)
    with pytest.raises(InputError):
        load_parameters(path)


def test_the_chart_shows_pods_and_caps(co_location):
    trial = make_trial(co_location.parameters, {"a": 30720, "b": 20480})
    free = make_trial(co_location.parameters, {"a": 33792, "b": 22528}, "off")
    chart = co_location.question.chart(co_location.parameters, trial, free)
    assert [side.control for side in chart.sides] == [False, True]
    for side, most in zip(
        chart.sides, ({"a": 30.0, "b": 20.0}, {"a": 33.0, "b": 22.0}), strict=True
    ):
        panel = next(panel for panel in side.panels if panel.quantity == "memory")
        assert {line.label: max(line.values) for line in panel.lines} == most
        assert {cap.label: cap.value for cap in panel.caps} == {"a": 30.0, "b": 20.0}
