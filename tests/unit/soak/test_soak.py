"""The one verdict of a soak, and which points a day strikes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import msgspec
import pytest

from testbed.lab.scenario.record import Check, Control, Environment, Record, no_verdict

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("soak", ROOT / "tests/soak.py")
assert _spec is not None and _spec.loader is not None
soak = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(soak)

XML = """<testsuites><testsuite>
<testcase name="held"/><testcase name="no"><failure/></testcase>
<testcase name="broke"><error/></testcase><testcase name="not here"><skipped/></testcase>
</testsuite></testsuites>"""


def test_what_ran_and_what_did_not_pass():
    assert soak.counted(XML) == {"run": 3, "failed": ["no", "broke"], "skipped": ["not here"]}
    assert soak.counted("") == {"run": 0, "failed": [], "skipped": []}


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [(("pass",), "pass"), (("pass", "fail"), "fail"), (("fail", "error", "pass"), "error")],
)
def test_the_worst_verdict_counts(verdicts, worst):
    assert soak.verdict_of([{"verdict": each} for each in verdicts]) == worst


def record(verdict, *, bad=(), control="", reason=""):
    checks = [Check(name="memory_cap", verdict="pass", pod="a")]
    checks += [Check(name=n, verdict="fail", pod="a", reason="more than its share") for n in bad]
    found = Record(
        case="q/c",
        verdict=verdict,
        asserts_limit=True,
        checks=tuple(checks),
        control=Control(verdict="error" if control else "pass", reason=control),
        environment=Environment(provider="", card="", kubernetes="", torch="", stack="", shim=""),
        started="",
        seconds=1.0,
        reason=reason,
    )
    return json.loads(msgspec.json.encode(found))


def test_what_did_not_hold_is_told_with_how_often():
    rounds = [
        record("pass"),
        record("fail", bad=["share_work"]),
        record("error", bad=["share_work"], control="proved nothing", reason="a busy machine"),
        json.loads(msgspec.json.encode(no_verdict("q/c", "killed", asserts_limit=True))),
    ]
    assert soak.reasons(rounds) == {
        "share_work a: more than its share": 2,
        "control: proved nothing": 1,
        "a busy machine": 1,
        "killed": 1,
    }
    assert soak.reasons([]) == {}


@pytest.mark.parametrize("text", ["", "no document", "[]"])
def test_a_command_without_a_document_is_no_verdict(text):
    assert soak.document_of(text) == {}
