"""Tables for terminal and notebook, of plain values."""

from __future__ import annotations

import html
from collections.abc import Sequence

from testbed.lab.scenario.record import Check, Record, Report

MARKS = {"pass": "✓", "fail": "✗", "skipped": "-", "error": "!"}


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows aligned under a header, as kubectl prints them."""
    widths = [
        max(len(row[i]) for row in [header, *rows]) if i < len(header) - 1 else 0
        for i in range(len(header))
    ]
    lines = [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join(lines)


def figure(value: float | str | None, unit: str = "") -> str:
    """Return one figure for people; a dash where there is none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, str):
        return value
    text = f"{value:,.1f}".removesuffix(".0")
    return f"{text} {unit}".strip()


CHECK_HEADER = ("CHECK", "POD", "VARIANT", "ASKED", "WORKLOAD", "CARD", "VERDICT", "REASON")


def check_row(check: Check) -> tuple[str, ...]:
    """Return one check as cells."""
    workload = "-" if check.name == "annotations" else figure(check.workload, check.unit)
    return (
        check.name,
        check.pod or "-",
        check.variant or "-",
        figure(check.asked, check.unit),
        workload,
        figure(check.card, check.unit),
        f"{MARKS[check.verdict]} {check.verdict}",
        check.reason,
    )


def checks_text(checks: Sequence[Check]) -> str:
    """Return the table of checks."""
    return columns(CHECK_HEADER, [check_row(check) for check in checks])


def checks_html(checks: Sequence[Check], caption: str = "") -> str:
    """Return the table of checks for a notebook, verdicts coloured."""
    colours = {"pass": "#1a7f37", "fail": "#cf222e", "error": "#9a6700", "skipped": "#57606a"}
    head = "".join(f"<th style='text-align:left'>{cell.title()}</th>" for cell in CHECK_HEADER)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='text-align:left;color:{colours[check.verdict]}'>{html.escape(cell)}</td>"
            if position == 6
            else f"<td style='text-align:left'>{html.escape(cell)}</td>"
            for position, cell in enumerate(check_row(check))
        )
        + "</tr>"
        for check in checks
    )
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def record_text(record: Record) -> str:
    """Return a record as its table, the control's result and the verdict."""
    lines = [checks_text(record.checks), ""]
    if record.control is not None:
        must = [check for check in record.control.checks if check.control != "any"]
        failed = sum(check.verdict == "fail" for check in must)
        outcome = (
            f"without the limiter {failed} of {len(must)} limit checks fail, as they must"
            if record.control.verdict == "pass"
            else f"not usable: {record.control.reason}"
        )
        lines.append(f"control   {MARKS[record.control.verdict]} {outcome}")
    lines.append(f"verdict   {MARKS[record.verdict]} {record.verdict}  {record.case}")
    if record.reason:
        lines.append(f"reason    {record.reason}")
    return "\n".join(lines)


def report_text(report: Report) -> str:
    """Return a run's summary, one line a case."""
    rows = [
        (
            record.case,
            f"{MARKS[record.verdict]} {record.verdict}",
            str(sum(check.verdict == "pass" for check in record.checks)),
            str(sum(check.verdict not in ("pass", "skipped") for check in record.checks)),
            str(sum(check.verdict == "skipped" for check in record.checks)),
            f"{record.seconds:.0f}s",
        )
        for record in report.cases
    ]
    return columns(("CASE", "VERDICT", "PASSED", "FAILED", "SKIPPED", "TIME"), rows)
