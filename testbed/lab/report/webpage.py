"""A report as one HTML page that needs nothing beside itself.

No script, no font, no picture from elsewhere; every text from a record is escaped.
Links lead to artifacts below the run's folder only, relative to the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from urllib.parse import quote

import yaml

from testbed.lab.report import facts
from testbed.lab.report.chart import Chart
from testbed.lab.report.facts import figure
from testbed.lab.report.pictures import pictures, style
from testbed.lab.report.table import MARKS
from testbed.lab.scenario.record import Check, Record, Report, Verdict

_SIGNS = {"pass": "✓", "fail": "✗", "error": "!", "skipped": "–"}
assert set(_SIGNS) == set(MARKS)


def webpage(
    report: Report,
    charts: Sequence[Chart | None],
    links: Sequence[Mapping[str, str]],
) -> str:
    """Return the page.

    Args:
        report: The run.
        charts: For each case the chart of its trials, None where there is none.
        links: For each case its artifacts: what each is, and its path relative to
            the page.
    """
    title = f"{report.verdict}: {facts.summary(report)}"
    body = [_banner(report)]
    if len(report.cases) > 1:
        body.append(_overview(report))
    body += [
        _case(record, number, chart, linked)
        for number, (record, chart, linked) in enumerate(
            zip(report.cases, charts, links, strict=True)
        )
    ]
    styles = (files(__package__) / "style.css").read_text() + style()
    return facts.printable(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Whatever a record may hold, the page loads and runs nothing.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)} – vgpu-testbed</title>\n"
        f"<style>\n{styles}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<footer>vgpu-testbed, {escape(report.schema)}</footer>\n</body>\n</html>\n"
    )


def _badge(verdict: Verdict, text: str = "") -> str:
    return f'<span class="badge {verdict}">{_SIGNS[verdict]} {escape(text or verdict)}</span>'


def _banner(report: Report) -> str:
    said = [f"started {facts.moment(report.started)}"] if report.started else []
    if report.seconds:
        said.append(f"took {facts.duration(report.seconds)}")
    stacks = {r.environment.stack for r in report.cases if r.environment.stack}
    cards = {r.environment.card for r in report.cases if r.environment.card}
    said += [*sorted(cards), *sorted(stacks)]
    parts = [
        f'<header class="banner {report.verdict}">',
        f"<h1>{_SIGNS[report.verdict]} {report.verdict}: {escape(facts.summary(report))}</h1>",
    ]
    if len(report.cases) == 1:
        [record] = report.cases
        control = f"control: {facts.control_text(record)}"
        parts.append(f"<p>{escape(facts.counted(record))}; {escape(control)}</p>")
    if said:
        parts.append(f'<p class="soft">{escape(" · ".join(said))}</p>')
    if report.reproduce:
        parts.append(f"<pre>{escape(report.reproduce)}</pre>")
    return "".join(parts) + "</header>"


def _overview(report: Report) -> str:
    rows = "".join(
        "<tr>"
        + _cell("Verdict", _badge(record.verdict), "verdict")
        + _cell("Case", f'<a href="#case-{number}">{escape(record.case)}</a>', "name")
        + _cell("Checks", escape(facts.counted(record)))
        + _cell("Control", escape(facts.control_text(record)), "broad")
        + _cell("Time", escape(facts.duration(record.seconds)), "number")
        + "</tr>"
        for number, record in enumerate(report.cases)
    )
    head = "<th>Verdict</th><th>Case</th><th>Checks</th><th>Control</th><th class=number>Time</th>"
    return f'<table class="wide"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _case(record: Record, number: int, chart: Chart | None, links: Mapping[str, str]) -> str:
    parts = [
        f'<section class="case" id="case-{number}">',
        f"<header><h2>{escape(record.case)}</h2>{_badge(record.verdict)}</header>",
    ]
    if record.title:
        parts.append(f'<p class="soft">{escape(record.title)}</p>')
    if record.reason:
        parts.append(f'<p class="reason">{_lines(record.reason)}</p>')
    if chart is not None and chart.sides:
        parts.append(f"<h3>Over time</h3>{pictures(chart)}")
    if record.checks or record.control is not None:
        parts.append(_checks(record))
    parts.append('<div class="columns">')
    parts.append(_meanings(record))
    about = [*facts.environment(record)]
    about += [("started", facts.moment(record.started)), ("took", facts.duration(record.seconds))]
    parts.append(f"<div><h3>Environment</h3>{_facts(about)}</div>")
    if record.parameters:
        text = yaml.safe_dump(
            record.parameters, sort_keys=False, allow_unicode=True, default_flow_style=None
        )
        parts.append(f"<div><h3>Parameters</h3><pre>{escape(text.rstrip())}</pre></div>")
    if links:
        shown = " · ".join(
            f'<a href="{escape(quote(path, errors="replace"))}">{escape(what)}</a>'
            for what, path in links.items()
        )
        parts.append(f"<div><h3>Files</h3><p>{shown}</p></div>")
    parts.append("</div></section>")
    return "".join(parts)


def _cell(label: str, content: str, kind: str = "") -> str:
    names = " ".join(filter(None, (kind, "" if content not in ("", "-") else "empty")))
    return f'<td data-label="{label}"' + (f' class="{names}"' if names else "") + f">{content}</td>"


def _figure(label: str, check: Check | None, name: str) -> str:
    value = None if check is None else getattr(check, name)
    unit = "" if check is None else check.unit
    kind = "number words" if isinstance(value, str) and len(value) > 12 else "number"
    return _cell(label, escape(figure(value, unit)), kind)


def _checks(record: Record) -> str:
    every = facts.lines(record)
    controlled = any(line.must is not None for line in every)
    head = ["Verdict", "Check", "Pod", "Asked", "Workload", "Card", "Tolerance"]
    head += ["Control"] if controlled else []
    head.append("Reason, source")
    numbers = {"Asked", "Workload", "Card", "Tolerance"}
    columns = "".join(
        f'<th class="number">{each}</th>' if each in numbers else f"<th>{each}</th>"
        for each in head
    )
    rows = "".join(_check(line, controlled=controlled) for line in every)
    return (
        f'<h3>Checks</h3><p class="soft">{escape(facts.counted(record))}.'
        f" Control: {escape(facts.control_text(record))}.</p>"
        f'<div class="scroll"><table class="wide"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _check(line: facts.Line, *, controlled: bool) -> str:
    shown, check = line.shown, line.check
    name = f"<code>{escape(shown.name)}</code>"
    if shown.variant:
        name += f'<br><span class="soft">{escape(shown.variant)}</span>'
    cells = [
        _cell("Verdict", _badge(check.verdict) if check else "", "verdict"),
        _cell("Check", f"<span>{name}</span>", "name"),
        _cell("Pod", escape(shown.pod or "-"), "pod"),
        _figure("Asked", shown, "asked"),
        _figure("Workload", check, "workload"),
        _figure("Card", check, "card"),
        _cell("Tolerance", escape(facts.tolerance(shown)), "number"),
    ]
    if controlled:
        cells.append(_cell("Control", _control(line), "broad"))
    reason = _lines(check.reason if check else "")
    source = f'<span class="soft">{escape(shown.source)}</span>' if shown.source else ""
    both = "<br>".join(filter(None, (reason, source)))
    cells.append(_cell("Reason, source", f"<span>{both}</span>" if both else "", "text broad"))
    return f"<tr>{''.join(cells)}</tr>"


def _control(line: facts.Line) -> str:
    """Say what the control answered and what it must; the colour says whether it did."""
    if line.control is None:
        return "" if line.must is None else _badge("error", f"not made, must {line.must}")
    if line.must is None:
        badge = _badge("skipped", line.control.verdict)
    elif line.control_holds:
        badge = _badge("pass", f"{line.control.verdict}, as it must")
    else:
        badge = _badge("error", f"{line.control.verdict}, must {line.must}")
    number = line.control.card if line.control.card is not None else line.control.workload
    text = "" if number is None else escape(figure(number, line.control.unit))
    return f'<span>{badge} <span class="soft">{text}</span></span>'


def _meanings(record: Record) -> str:
    used = dict.fromkeys(check.name for check in record.checks)
    told = [(name, record.meanings[name]) for name in used if name in record.meanings]
    return f"<div><h3>What is checked</h3>{_facts(told, code=True)}</div>" if told else ""


def _facts(pairs: Sequence[tuple[str, str]], *, code: bool = False) -> str:
    rows = "".join(
        f"<dt>{f'<code>{escape(label)}</code>' if code else escape(label)}</dt>"
        f"<dd>{escape(value)}</dd>"
        for label, value in pairs
    )
    return f'<dl class="facts">{rows}</dl>'


def _lines(text: str) -> str:
    return "<br>".join(escape(line) for line in text.splitlines())
