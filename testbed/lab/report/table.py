"""Tables for terminal and notebook, of plain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape

from testbed.lab.report import facts
from testbed.lab.report.facts import figure
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


#: Characters of a cell in a terminal; the record and the page have all of it.
_WIDEST = 44
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
    """Return the table of checks; what held is told in short, for a terminal's width."""
    rows = [
        tuple(map(_clipped, row)) if check.verdict == "pass" else row
        for check in checks
        for row in [check_row(check)]
    ]
    return columns(CHECK_HEADER, rows)


def _clipped(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1].rstrip()}…"


def matrix(
    checks: Sequence[Check], meanings: Mapping[str, str], *, control: bool, asserts_limit: bool
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of an overview: a row a check, a column a pod.

    A cell counts the variants that came out as they shall, and begins with a mark.

    Args:
        checks: Of the run, or of its control.
        meanings: A sentence for a check's name.
        control: Whether they are the control's, whose limit checks must fail.
        asserts_limit: Of the question.
    """
    pods = list(dict.fromkeys(check.pod for check in checks))
    rows = []
    for name in dict.fromkeys(check.name for check in checks):
        cells = []
        for pod in pods:
            found = [check for check in checks if (check.name, check.pod) == (name, pod)]
            cells.append(_cell(found, control=control, asserts_limit=asserts_limit))
        rows.append([name, meanings.get(name, ""), *cells])
    return ["CHECK", "WHAT IT ASKS", *(pod or "-" for pod in pods)], rows


def _cell(found: Sequence[Check], *, control: bool, asserts_limit: bool) -> str:
    if not found:
        return ""
    if not control:
        judged = [check for check in found if check.verdict != "skipped"]
        if not judged:
            return f"{MARKS['skipped']} skipped"
        bad = [check for check in judged if check.verdict != "pass"]
        worst = "error" if any(check.verdict == "error" for check in bad) else "fail"
        mark = MARKS[worst if bad else "pass"]
        return f"{mark} {len(judged) - len(bad)} of {len(judged)} pass"
    asked = [(check, facts.must(check, check, asserts_limit)) for check in found]
    asked = [(check, must) for check, must in asked if must is not None]
    if not asked:
        return f"{MARKS['skipped']} either will do"
    held = sum(check.verdict == must for check, must in asked)
    words = {must for _, must in asked}
    what = "fail, as they must" if words == {"fail"} else "answer as they must"
    return f"{MARKS['pass' if held == len(asked) else 'error']} {held} of {len(asked)} {what}"


# --- for a notebook, which brings its own style: what ours needs stands in each tag -----
#: What is shorter stands on one line.
_SHORT = 22
#: Text and ground of a badge, readable on a light page and on a dark one.
_BADGES = {
    "✓": "color:#0f5223;background:#d9f2e0",
    "✗": "color:#8c1119;background:#fbdcdc",
    "!": "color:#6b4500;background:#fbeac2",
    "-": "color:#40474f;background:#e4e7ea",
}


def badge_html(text: str) -> str:
    """Return text that begins with one of ``MARKS`` as a coloured badge."""
    style = _BADGES.get(text[:1], "")
    return (
        f"<span style='display:inline-block;border-radius:1em;padding:0 .7em;font-weight:600;"
        f"white-space:nowrap;{style}'>{escape(text)}</span>"
    )


def rows_html(
    header: Sequence[str], rows: Sequence[Sequence[str]], badges: Collection[int] = ()
) -> str:
    """Return rows as a table for a notebook.

    Args:
        header: Names of the columns.
        rows: Text of the cells.
        badges: Positions of the columns that hold verdicts.
    """
    left = "style='text-align:left;vertical-align:top'"
    short = "style='text-align:left;vertical-align:top;white-space:nowrap'"
    names = [name.capitalize() if name.isupper() else name for name in header]
    head = "".join(f"<th {left}>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td {short if len(cell) < _SHORT else left}>"
            f"{badge_html(cell) if cell and position in badges else escape(cell)}</td>"
            for position, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def checks_html(checks: Sequence[Check]) -> str:
    """Return the table of checks for a notebook, verdicts as badges."""
    position = CHECK_HEADER.index("VERDICT")
    return rows_html(CHECK_HEADER, [check_row(check) for check in checks], {position})


def record_text(record: Record) -> str:
    """Return a record as its table, if it has checks, the control's result and the verdict."""
    table = [checks_text(record.checks), ""] if record.checks else []
    return "\n".join([*table, *_outcome(record)])


def _outcome(record: Record) -> list[str]:
    lines = []
    if record.control is not None:
        lines.append(f"control   {MARKS[record.control.verdict]} {facts.control_text(record)}")
    lines.append(f"verdict   {MARKS[record.verdict]} {record.verdict}  {record.case}")
    if record.reason:
        lines.append(f"reason    {record.reason}")
    return lines


def record_html(record: Record) -> str:
    """Return a record for a notebook: the verdict, why, and where its files are."""
    lines = [
        f"<p style='font-size:1.25em'>{badge_html(f'{MARKS[record.verdict]} {record.verdict}')}"
        f" {escape(record.case)}</p>"
    ]
    told = [("checks", facts.counted(record)), ("control", facts.control_text(record))]
    told += [("reason", record.reason)] if record.reason else []
    told += [(what, path) for what, path in record.artifacts.items()]
    rows = "".join(
        f"<tr><td style='text-align:left'><b>{escape(label)}</b></td>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for label, text in told
    )
    return "".join(lines) + f"<table><tbody>{rows}</tbody></table>"


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
