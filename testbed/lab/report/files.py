"""The forms of a report on disk: written after a run, and again from its records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import read_chart
from testbed.lab.report.junit import junit
from testbed.lab.report.markdown import markdown
from testbed.lab.report.webpage import webpage
from testbed.lab.scenario.record import Record, Report, read_record, worst, write_json

REPORT = "report.json"
RECORD = "record.json"
CHART = "chart.json"
#: Form to its file in the run's folder.
FILES = {"json": REPORT, "html": "report.html", "junit": "report.xml", "markdown": "summary.md"}
#: GitHub actions show what is appended to this file; more than 1 MiB is refused there.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def render(report: Report, form: str, folder: Path, *, base: Path | None = None) -> str:
    """Return a report in one form of ``FILES``.

    Args:
        report: The run.
        form: A key of ``FILES``.
        folder: The run's folder, where its charts and files are sought.
        base: Where the page will lie, for its links; the run's folder by default.
    """
    if form == "json":
        return encoded(report).decode()
    if form == "junit":
        return junit(report)
    if form == "markdown":
        return markdown(report)
    places = [case_folder(record, folder) for record in report.cases]
    charts = [None if place is None else read_chart(place / CHART) for place in places]
    links = [
        artifact_links(record, base or folder, place)
        for record, place in zip(report.cases, places, strict=True)
    ]
    return webpage(report, charts, links)


def write_all(report: Report, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Write every form into a run's folder, the JSON first: it is the verdict."""
    write_json(folder / REPORT, report)
    for form, name in FILES.items():
        if form != "json":
            write_text(folder / name, render(report, form, folder))
    if summary := environ.get(STEP_SUMMARY):
        with Path(summary).open("a") as file:
            file.write(markdown(report))


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def find_run(text: str, runs: Path) -> Path:
    """Return the folder of a run: ``latest``, its name below ``runs``, or a path.

    Raises:
        InputError: there is none, or it holds no record.
    """
    given = Path(text)
    for place in (runs / text, given):
        folder = place.parent if place.name in (*FILES.values(), RECORD) else place
        if folder.is_dir() and _has_records(folder):
            return folder.resolve()
    known = sorted(each.name for each in runs.glob("*") if each.is_dir() and not each.is_symlink())
    hint = f"runs below {runs}: " + ", ".join(known[-5:]) if known else "`testbed run` makes one"
    raise InputError(f"there is no run {text!r}", why=f"no record in {runs / text}", hint=hint)


def _has_records(folder: Path) -> bool:
    return (folder / REPORT).exists() or any(folder.glob(f"**/{RECORD}"))


def load_run(folder: Path) -> Report:
    """Return a run's report; without one (plain papermill), that of its records.

    Raises:
        InputError: something there is no report, or no record.
    """
    path = folder / REPORT
    if not path.exists():
        return assembled([read_record(each) for each in sorted(folder.glob(f"**/{RECORD}"))])
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise InputError(f"report {path} cannot be read", why=str(error)) from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a report", why=str(error)) from error


def assembled(records: list[Record], *, reproduce: str = "") -> Report:
    """Return the report of records: the worst verdict, in the order of their start."""
    ordered = sorted(records, key=lambda record: record.started)
    return Report(
        verdict=worst([record.verdict for record in ordered]),
        cases=tuple(ordered),
        started=ordered[0].started if ordered else "",
        seconds=round(sum(record.seconds for record in ordered), 1),
        reproduce=reproduce,
    )


def case_folder(record: Record, folder: Path) -> Path | None:
    """Return where a case's files are: in the run's folder, which may have moved."""
    parts = Path(record.artifacts.get("record", "")).parts[1:-1]
    # The longest part of the path that it had is tried first.
    tails = [Path(*parts[position:]) for position in range(len(parts))]
    for place in (*(folder / tail for tail in tails), folder / record.case, folder):
        if (place / RECORD).exists() and _is_of(place / RECORD, record):
            return place
    return None


def _is_of(path: Path, record: Record) -> bool:
    try:
        found = read_record(path)
    except InputError:
        return False
    return (found.case, found.started) == (record.case, record.started)


def artifact_links(record: Record, base: Path, place: Path | None) -> dict[str, str]:
    """Return those artifacts that exist in the case's folder, relative to ``base``."""
    if place is None:
        return {}
    found: dict[str, str] = {}
    for what, text in record.artifacts.items():
        path = place / Path(text).name
        if Path(text).name and path.exists():
            found[what] = Path(os.path.relpath(path, base)).as_posix()
    return found


def encoded(value: Any) -> bytes:
    """Return a value as JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of ``report.json``."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Report)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of vgpu-testbed",
        **document,
    }
