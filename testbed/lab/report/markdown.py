"""A report as Markdown, for a step summary of GitHub actions or a merge request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from testbed.lab.report import facts
from testbed.lab.report.facts import figure
from testbed.lab.scenario.record import Record, Report

ICONS = {"pass": "✅", "fail": "❌", "error": "⚠️", "skipped": "⏭️"}
_SPECIAL = re.compile(r"([\\`*_\[\]~|#@$!{}])")
_HEADER = ("Check", "Pod", "Variant", "Asked", "Workload", "Card", "Tolerance", "Verdict", "Reason")


def markdown(report: Report) -> str:
    """Return the summary: verdict, cases, what did not hold, then everything."""
    out = [f"## {ICONS[report.verdict]} {report.verdict}: {escape(facts.summary(report))}", ""]
    rows = [
        (
            escape(record.case),
            f"{ICONS[record.verdict]} {record.verdict}",
            facts.counted(record),
            escape(facts.control_text(record)),
            facts.duration(record.seconds),
        )
        for record in report.cases
    ]
    if rows:
        out += [*_table(("Case", "Verdict", "Checks", "Control", "Time"), rows), ""]
    for record in report.cases:
        out += _case(record)
    if report.reproduce:
        out += ["To run the same again:", "", *_fenced(report.reproduce), ""]
    return facts.printable("\n".join(out).rstrip() + "\n")


def _case(record: Record) -> list[str]:
    out = [f"### {escape(record.case)}", ""]
    if record.title:
        out += [escape(record.title), ""]
    if record.reason:
        out += [f"**Reason:** {escape(record.reason)}", ""]
    every = facts.lines(record)
    bad = [line for line in every if line.check and line.check.verdict in ("fail", "error")]
    if bad:
        out += [*_checks(bad), ""]
    wrong = [line for line in every if line.control_holds is False]
    if wrong:
        rows = [
            (
                escape(facts.title(line.shown)),
                str(line.must),
                escape("not made" if line.control is None else line.control.verdict),
                escape("-" if line.control is None else facts.measured(line.control)),
            )
            for line in wrong
        ]
        out += ["The control did not answer as it must:", ""]
        out += [*_table(("Check", "Must", "Was", "Measured"), rows), ""]
    if record.checks:
        out += [f"<details><summary>All {len(record.checks)} checks</summary>", ""]
        out += [*_checks(every), "", "</details>", ""]
    environment = ", ".join(f"{label} {value}" for label, value in facts.environment(record))
    if environment:
        out += [f"<sub>{escape(environment)}</sub>", ""]
    return out


def _checks(lines: Sequence[facts.Line]) -> list[str]:
    rows = [
        (
            f"`{check.name}`" if re.fullmatch(r"\w+", check.name) else escape(check.name),
            escape(check.pod or "-"),
            escape(check.variant or "-"),
            escape(figure(check.asked, check.unit)),
            escape(figure(check.workload, check.unit)),
            escape(figure(check.card, check.unit)),
            escape(facts.tolerance(check)),
            f"{ICONS[check.verdict]} {check.verdict}",
            escape(check.reason),
        )
        for line in lines
        if (check := line.check) is not None
    ]
    return _table(_HEADER, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    every = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(row) + " |" for row in every]


def _fenced(text: str) -> list[str]:
    """Return a code block; the fence is longer than any in the text."""
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + "sh", *text.splitlines(), fence]


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    line = " ".join(text.split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", line)
