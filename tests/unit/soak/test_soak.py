"""The one verdict of a soak, and which points a day strikes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("text", ["", "no document", "[]"])
def test_a_command_without_a_document_is_no_verdict(text):
    assert soak.document_of(text) == {}
