"""Verdict arithmetic and the record's file."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.lab.scenario.record import (
    Check,
    Control,
    Environment,
    Record,
    budget_reason,
    case_verdict,
    read_record,
    worst,
    write_json,
)

PASS = Check(name="memory_cap", verdict="pass")
FAIL = Check(name="memory_cap", verdict="fail")
SKIPPED = Check(name="share_card", verdict="skipped")
ERROR = Check(name="card_bytes", verdict="error")
GOOD = Control(verdict="pass", checks=(FAIL,))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["pass", "skipped"], "pass"),
        (["pass", "fail", "skipped"], "fail"),
        (["fail", "error", "pass"], "error"),
        (["skipped", "skipped"], "skipped"),
        ([], "error"),
    ],
)
def test_the_worst_verdict_wins(verdicts, expected):
    assert worst(verdicts) == expected


@pytest.mark.parametrize(
    ("checks", "control", "expected"),
    [
        ((PASS, SKIPPED), GOOD, "pass"),
        ((PASS, FAIL), GOOD, "fail"),
        ((PASS, ERROR), GOOD, "error"),
        ((PASS,), None, "error"),
        ((PASS,), Control(verdict="error"), "error"),
        ((PASS,), Control(verdict="fail"), "error"),
        ((FAIL,), Control(verdict="error"), "error"),
        ((), GOOD, "error"),
        ((SKIPPED,), GOOD, "skipped"),
    ],
)
def test_a_limit_needs_checks_and_a_control_that_failed(checks, control, expected):
    assert case_verdict(checks, control, asserts_limit=True) == expected


@pytest.mark.parametrize("checks", [(PASS,), (FAIL,), (SKIPPED,)])
def test_a_budget_that_was_hit_makes_an_error(checks):
    assert case_verdict(checks, GOOD, asserts_limit=True, budget_hits=1) == "error"
    assert case_verdict(checks, None, asserts_limit=False, budget_hits=1) == "error"
    assert "VGPU_EMU_MEMORY_BUDGET" in budget_reason(1) and budget_reason(0) == ""


def test_a_rule_needs_no_control():
    assert case_verdict((PASS,), None, asserts_limit=False) == "pass"


def test_a_record_survives_its_file(tmp_path):
    record = Record(
        case="q/c",
        verdict="pass",
        asserts_limit=True,
        checks=(PASS,),
        control=GOOD,
        environment=Environment(
            provider="process", card="c", kubernetes="v1", torch="2", stack="s", shim="x"
        ),
        started="2026-01-01T00:00:00Z",
        seconds=1.5,
    )
    write_json(tmp_path / "deep" / "record.json", record)
    assert read_record(tmp_path / "deep" / "record.json") == record


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"case": 1}', "not json"])
def test_what_is_no_record_is_refused(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(InputError):
        read_record(path)
    with pytest.raises(InputError):
        read_record(tmp_path / "missing.json")
