"""A report as JUnit XML: a test suite a case, a test case a check.

The dialect is the one that Jenkins, GitLab and GitHub actions read: ``testsuites``,
``testsuite``, ``properties``, ``testcase`` with ``failure``, ``error`` or ``skipped``.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from testbed.lab.report import facts
from testbed.lab.report.facts import figure
from testbed.lab.scenario.record import Check, Record, Report


def junit(report: Report) -> str:
    """Return the document. It holds a failure or an error exactly if the run did not pass."""
    root = Element("testsuites", name="vgpu-testbed", time=f"{report.seconds:.1f}")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for record in report.cases:
        suite = _suite(record)
        root.append(suite)
        for key in totals:
            totals[key] += int(suite.get(key, "0"))
    if not report.cases:
        suite = SubElement(root, "testsuite", name="run", tests="1", errors="1")
        case = SubElement(suite, "testcase", classname="run", name="verdict", time="0")
        SubElement(case, "error", message="no case was run")
        totals.update(tests=1, errors=1)
    for key, value in totals.items():
        root.set(key, str(value))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _suite(record: Record) -> Element:
    suite = Element(
        "testsuite",
        name=_text(record.case),
        timestamp=_text(record.started.partition("+")[0].removesuffix("Z")),
        time=f"{record.seconds:.1f}",
    )
    properties = SubElement(suite, "properties")
    for name, value in [
        ("verdict", record.verdict),
        *facts.environment(record),
        *((f"parameter.{name}", value) for name, value in facts.flat(record.parameters)),
        *((f"artifact.{name}", value) for name, value in record.artifacts.items()),
    ]:
        SubElement(properties, "property", name=_text(name), value=_text(value))
    classname = _text(record.case.replace(".", "_").replace("/", "."))
    for check in record.checks:
        case = SubElement(
            suite, "testcase", classname=classname, name=_text(facts.title(check)), time="0"
        )
        _outcome(case, check)
    if record.asserts_limit:
        _control(
            SubElement(suite, "testcase", classname=classname, name="control", time="0"), record
        )
    said = len(suite.findall("testcase/failure")), len(suite.findall("testcase/error"))
    if (record.verdict != "pass" and not any(said)) or (record.verdict == "error" and not said[1]):
        case = SubElement(suite, "testcase", classname=classname, name="verdict", time="0")
        kind = "error" if record.verdict == "error" else "failure"
        why = record.reason or f"the case's verdict is {record.verdict}"
        if record.verdict == "skipped":
            why = record.reason or "nothing was checked: every check was skipped"
        SubElement(case, kind, message=_text(why), type=record.verdict)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _outcome(case: Element, check: Check) -> None:
    if check.verdict == "pass":
        return
    if check.verdict == "skipped":
        SubElement(case, "skipped", message=_text(check.reason))
        return
    tag = "failure" if check.verdict == "fail" else "error"
    found = SubElement(
        case, tag, message=_text(check.reason or check.verdict), type=_text(check.name)
    )
    found.text = _text(
        f"asked {figure(check.asked, check.unit)}, {facts.measured(check)},"
        f" tolerance {facts.tolerance(check)}, source {check.source or '-'}"
    )


def _control(case: Element, record: Record) -> None:
    if record.control is not None and record.control.verdict == "pass":
        return
    found = SubElement(case, "error", message=_text(facts.control_text(record)), type="control")
    found.text = "\n".join(
        _text(f"{facts.title(line.shown)}: must {line.must}, was {_was(line)}")
        for line in facts.lines(record)
        if line.control_holds is False
    )


def _was(line: facts.Line) -> str:
    if line.control is None:
        return "not made"
    return f"{line.control.verdict} ({facts.measured(line.control)})"


def _text(value: object) -> str:
    return facts.printable(str(value))
