"""HTML, JUnit and Markdown say what the record says, and nothing gets out of its text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.lab.report import facts
from testbed.lab.report.junit import junit
from testbed.lab.report.markdown import escape, markdown
from testbed.lab.report.webpage import webpage
from testbed.lab.scenario.record import Check, Control, Environment, Record, Report

from .conftest import CASE, limit, made_chart, made_record, made_report

HOSTILE = "<script>alert(1)</script>\"'&|`*[x](javascript:y)]]>\x00\x1b\n\ud800"
VOID = {"meta", "br", "path", "rect"}
VERDICTS = ("pass", "fail", "error", "skipped")


class Page(HTMLParser):
    """Checks that tags are closed in order; keeps text, attributes and table cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "td" in self.open:
            self.rows[-1][-1] += data


def page(report: Report, *, chart: bool = False, links: dict[str, str] | None = None) -> Page:
    every = [made_chart() if chart else None] * len(report.cases)
    return Page(webpage(report, every, [links or {}] * len(report.cases)))


def hostile(value: Any) -> Any:
    """Return a value with every free text in it replaced by what no form may let through."""
    if isinstance(value, msgspec.Struct):
        kept = {"verdict", "schema", "started"}
        return msgspec.structs.replace(
            value,
            **{
                name: hostile(getattr(value, name))
                for name in value.__struct_fields__
                if name not in kept and not (name == "control" and isinstance(value, Check))
            },
        )
    if isinstance(value, dict):
        return {HOSTILE + str(n): hostile(each) for n, each in enumerate(value.values())}
    if isinstance(value, tuple):
        return tuple(hostile(each) for each in value)
    return HOSTILE if isinstance(value, str) else value


checks = st.builds(
    Check,
    name=st.sampled_from(["memory_cap", "share_card"]),
    pod=st.sampled_from(["a", "b"]),
    verdict=st.sampled_from(VERDICTS),
    asked=st.none() | st.floats(0, 1e6) | st.text(max_size=5),
    reason=st.text(max_size=8),
    control=st.sampled_from(["", "fail", "pass", "any"]),
)
controls = st.none() | st.builds(
    Control, verdict=st.sampled_from(VERDICTS), checks=st.lists(checks, max_size=3).map(tuple)
)
records = st.builds(
    lambda verdict, checks, control, asserts, reason: made_record(
        verdict=verdict,
        checks=tuple(checks),
        control=control,
        asserts_limit=asserts,
        reason=reason,
    ),
    st.sampled_from(VERDICTS),
    st.lists(checks, max_size=4),
    controls,
    st.booleans(),
    st.text(max_size=8),
)
reports = st.lists(records, min_size=1, max_size=3).map(lambda found: made_report(*found))


@given(reports)
def test_every_form_can_be_made_of_every_report(report: Report) -> None:
    markdown(report)
    ElementTree.fromstring(junit(report))
    page(report, chart=True)


@given(reports)
def test_junit_is_red_exactly_where_a_case_did_not_pass(report: Report) -> None:
    root = ElementTree.fromstring(junit(report))
    for record, suite in zip(report.cases, root.iter("testsuite"), strict=True):
        red = int(suite.get("failures", "")) + int(suite.get("errors", ""))
        # A pass whose parts are not all good cannot come of a run; it is red as well.
        if record.verdict != "pass":
            assert red
            assert record.verdict != "error" or int(suite.get("errors", ""))
        elif all(check.verdict in ("pass", "skipped") for check in record.checks) and (
            not record.asserts_limit or (record.control and record.control.verdict == "pass")
        ):
            assert not red
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases) >= len(record.checks)
    for key in ("tests", "failures", "errors", "skipped"):
        total = sum(int(suite.get(key, "")) for suite in root.iter("testsuite"))
        assert int(root.get(key, "")) == total


def test_junit_tells_each_check_with_its_reason_and_figures() -> None:
    record = made_record(
        verdict="error",
        checks=(
            limit(),
            limit(pod="b", verdict="fail", reason="above the cap", card=31744.0),
            Check(name="survives", pod="b", verdict="error", reason="pod Failed: OOMKilled"),
            Check(name="share_card", verdict="skipped", reason="not enforced yet"),
        ),
    )
    root = ElementTree.fromstring(junit(made_report(record)))
    (suite,) = root.iter("testsuite")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert set(cases) == {
        "memory_cap [a, native]", "memory_cap [b, native]", "survives [b]", "share_card", "control"
    }  # fmt: skip
    assert {case.get("classname") for case in cases.values()} == {"co_location.a100-example"}
    failure = cases["memory_cap [b, native]"].find("failure")
    assert failure is not None and failure.get("message") == "above the cap"
    assert "asked 30,720 MiB" in str(failure.text) and "card 31,744 MiB" in str(failure.text)
    error = cases["survives [b]"].find("error")
    assert error is not None and "OOMKilled" in str(error.get("message"))
    skipped = cases["share_card"].find("skipped")
    assert skipped is not None and skipped.get("message") == "not enforced yet"
    assert len(cases["memory_cap [a, native]"]) == len(cases["control"]) == 0
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["parameter.pods.a.gpumem"] == "30720"
    assert properties["Kubernetes"] == "v1.37.2"


def test_a_control_that_proves_nothing_is_an_error_that_names_the_check() -> None:
    held = limit(pod="b", verdict="pass", control="")
    record = made_record(
        verdict="error",
        control=Control(
            verdict="error",
            reason="memory_cap of b did not pass its cap",
            checks=(limit(verdict="fail", control=""), held),
        ),
    )
    root = ElementTree.fromstring(junit(made_report(record)))
    (error,) = root.iter("error")
    assert "did not pass its cap" in str(error.get("message"))
    assert str(error.text) == (
        "memory_cap [b, native]: must fail, was pass (workload 30,718 MiB, card 30,720 MiB)"
    )
    text = markdown(made_report(record))
    assert "The control did not answer as it must" in text and "| fail | pass |" in text
    shown = page(made_report(record))
    assert any("pass, must fail" in cell for row in shown.rows for cell in row)
    assert "proves nothing: memory_cap of b did not pass its cap" in shown.text


def test_no_case_at_all_is_red() -> None:
    empty = Report(verdict="error", cases=())
    assert ElementTree.fromstring(junit(empty)).get("errors") == "1"
    assert "no case was run" in markdown(empty)
    assert "no case was run" in page(empty).text


def test_the_page_begins_with_the_verdict_and_shows_everything() -> None:
    failed = limit(pod="b", verdict="fail", reason="above the cap", card=31744.0)
    record = made_record(verdict="fail", checks=(limit(), failed))
    shown = page(made_report(record), chart=True, links={"record": "a b/record.json"})
    assert shown.text.strip().startswith("fail: 1 of 1 cases failed – vgpu-testbed")
    assert "✗ fail: 1 of 1 cases failed" in shown.text
    assert "testbed run co_location/a100-example" in shown.text
    # The worst check comes first, with what was asked and found and the control beside it.
    rows = [row for row in shown.rows if row]
    assert rows[0][:7] == [
        "✗ fail", "memory_capnative", "b", "30,720 MiB", "30,718 MiB", "31,744 MiB", "± 2 MiB"
    ]  # fmt: skip
    assert rows[0][7] == "✓ fail, as it must 33,792 MiB"
    assert rows[0][8:] == ["above the capmonitor (emulated)"]
    assert rows[1][0] == "✓ pass"
    for text in ("a: asked 10 GiB", "The pod ends at its cap.", "2.15.0", "libvgpu.so 12ab",
                 "gpumem: 30720", "2026-01-02 03:04:05 UTC", "keep their caps?"):  # fmt: skip
        assert text in shown.text
    assert ("a", {"href": "a%20b/record.json"}) in shown.tags


def test_several_cases_have_an_overview_that_leads_to_them() -> None:
    report = made_report(made_record(), made_record(case="q/two", verdict="fail"))
    shown = page(report)
    anchors = {attrs["id"] for _, attrs in shown.tags if "id" in attrs}
    targets = {attrs["href"][1:] for tag, attrs in shown.tags if tag == "a"}
    assert targets == anchors == {"case-0", "case-1"}


def test_the_page_needs_nothing_beside_itself() -> None:
    source = webpage(made_report(), [made_chart()], [{"record": "q/c/record.json"}])
    shown = Page(source)
    for tag, attrs in shown.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "image", "use")
        assert not {"src", "xlink:href", "style"} & set(attrs)
        assert not any(name.startswith("on") for name in attrs)
        assert "://" not in attrs.get("href", "")
    assert not re.search(r"url\(|@import|https?://", source)
    assert "prefers-color-scheme: dark" in source and "@media print" in source


@pytest.mark.parametrize("chart", [True, False])
def test_nothing_gets_out_of_a_text(chart: bool) -> None:
    plain = made_report(made_record(reason="x", artifacts={"record": "x"}))
    bad = hostile(plain)
    for report in (plain, bad):
        assert len(report.cases) == 1
    drawn = hostile(made_chart()) if chart else None
    source = webpage(bad, [drawn], [{HOSTILE: HOSTILE}])
    shown = Page(source)
    # The same elements in the same order: no text became one.
    links = {"record": "x"}
    good = Page(webpage(plain, [made_chart() if chart else None], [links]))
    names = [tag for tag, _ in shown.tags if tag != "br"]
    # Some differ in number: a check's meaning is found by its name, and names are equal now.
    assert set(names) <= {tag for tag, _ in good.tags}
    assert "script" not in names and "<script" not in source
    for tag, attrs in shown.tags:
        assert not any(name.startswith("on") for name in attrs)
        if tag == "a":
            assert not attrs["href"].lower().startswith("javascript:")
    source.encode("utf-8")


def test_nothing_gets_out_of_junit_and_markdown() -> None:
    bad = hostile(made_report(made_record(verdict="fail", checks=(limit(verdict="fail"),))))
    root = ElementTree.fromstring(junit(bad).encode("utf-8"))
    assert not list(root.iter("script"))
    text = markdown(bad)
    text.encode("utf-8")
    before, _, fenced = text.partition("```sh\n")  # in which nothing is markup
    assert "<script" not in before and fenced.count("```") == 1
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) in (6, 10)


@given(st.text(max_size=40))
def test_markdown_shows_text_as_it_is_on_one_line(text: str) -> None:
    line = escape(text)
    assert "\n" not in line and "<" not in line
    assert not re.search(r"(?<!\\)[*_`|\[\]]", re.sub(r"\\\\", "", line))
    back = re.sub(r"\\([\\`*_\[\]~|#@$!{}])", r"\1", line)
    for entity, sign in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        back = back.replace(entity, sign)
    assert back == " ".join(text.encode("utf-8", "replace").decode().split())


def test_a_command_with_backticks_stays_in_its_fence() -> None:
    text = markdown(made_report(reproduce="echo ```x```"))
    assert "````sh\necho ```x```\n````" in text


def test_what_a_case_without_a_verdict_shows() -> None:
    nothing = made_record(
        verdict="error",
        checks=(),
        control=None,
        reason="Kernel died\nno record",
        environment=Environment(provider="", card="", kubernetes="", torch="", stack="", shim=""),
        parameters={},
        meanings={},
        title="",
    )
    shown = page(made_report(nothing))
    assert "! error: 1 of 1 cases came to no verdict" in shown.text
    assert "Kernel died" in shown.text and "no checks" in shown.text
    assert "**Reason:** Kernel died no record" in markdown(made_report(nothing))


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (("pass",), "the case held"),
        (("pass", "pass"), "all 2 cases held"),
        (("pass", "skipped"), "1 of 2 cases held, 1 checked nothing"),
        (("skipped",), "the case checked nothing: every check was skipped"),
        (("fail", "pass", "error"), "1 of 3 cases failed, 1 of 3 cases came to no verdict"),
    ],
)
def test_a_run_in_a_sentence(verdicts: tuple[Any, ...], text: str) -> None:
    assert facts.summary(made_report(*(made_record(verdict=v) for v in verdicts))) == text


def test_a_check_that_says_what_its_control_must_answer_is_held_to_it() -> None:
    free = limit("lone_free", verdict="pass", control="pass")
    record: Record = made_record(
        checks=(limit(), free),
        control=Control(
            verdict="pass", checks=(limit(verdict="fail"), limit("lone_free", verdict="pass"))
        ),
    )
    assert [line.control_holds for line in facts.lines(record)] == [True, True]
    assert facts.control_text(record) == "in the control 2 of 2 checks answer as they must"
    assert facts.control_text(made_record(asserts_limit=False, control=None)).startswith("not need")
    missing = made_record(control=Control(verdict="pass", checks=(limit(verdict="fail"),)))
    assert [line.control_holds for line in facts.lines(missing)] == [True, False, None]
    assert CASE in markdown(made_report(missing)).replace("\\", "")


@pytest.mark.parametrize(
    ("tolerance", "unit", "text"),
    [(2.0, "MiB", "± 2 MiB"), (0.0, "MiB", "exact"), (0.0, "s", "at most"), (None, "s", "-")],
)
def test_what_is_asked_in_seconds_is_a_deadline(
    tolerance: float | None, unit: str, text: str
) -> None:
    check = Check(name="freed", verdict="pass", asked=5.0, tolerance=tolerance, unit=unit)
    assert facts.tolerance(check) == text
