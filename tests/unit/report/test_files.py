"""Runs on disk: found, read again wherever they lie, written whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from testbed.errors import InputError
from testbed.lab.report import files
from testbed.lab.scenario.record import Check, Record, worst, write_json

from .conftest import CASE, made_chart, made_record, made_report

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs/report.schema.json"


def stored(folder: Path, record: Record) -> Record:
    """Store a case as a notebook does: record, chart and an executed notebook."""
    place = folder / record.case
    record = msgspec.structs.replace(
        record,
        artifacts={
            "record": str(place / "record.json"),
            "notebook": str(place / "notebook.ipynb"),
            "plot": str(place / "not-made.png"),
        },
    )
    write_json(place / "record.json", record)
    (place / "notebook.ipynb").write_text("{}")
    (place / files.CHART).write_bytes(msgspec.json.encode(made_chart()))
    return record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with one case, its report not written yet."""
    folder = tmp_path / "runs" / "20260102-030405"
    stored(folder, made_record())
    return folder


def test_every_form_is_written_and_the_page_has_plot_and_links(run: Path) -> None:
    report = files.load_run(run)
    files.write_all(report, run, {})
    assert {path.name for path in run.iterdir() if path.is_file()} == set(files.FILES.values())
    page = (run / "report.html").read_text()
    assert "a: asked 10 GiB" in page
    assert f'href="{CASE}/record.json"' in page and f'href="{CASE}/notebook.ipynb"' in page
    assert "not-made" not in page
    assert files.load_run(run) == report


def test_the_step_summary_is_appended_to(run: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    summary.write_text("what another step said\n")
    report = files.load_run(run)
    files.write_all(report, run, {files.STEP_SUMMARY: str(summary)})
    assert summary.read_text() == "what another step said\n" + (run / "summary.md").read_text()


def test_a_run_that_moved_is_whole(run: Path, tmp_path: Path) -> None:
    files.write_all(files.load_run(run), run, {})
    moved = tmp_path / "artifacts" / "download"
    shutil.move(run, moved)
    page = files.render(files.load_run(moved), "html", moved)
    assert "a: asked 10 GiB" in page and f'href="{CASE}/record.json"' in page
    assert str(run) not in page
    # For a page elsewhere the links lead there.
    page = files.render(files.load_run(moved), "html", moved, base=tmp_path)
    assert f'href="artifacts/download/{CASE}/record.json"' in page


def test_cases_of_one_name_keep_their_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "20260102-030405"
    first = stored(folder / "1", made_record())
    second = stored(folder / "2", made_record(started="2026-01-02T03:05:05+00:00"))
    places = [files.case_folder(record, folder) for record in (first, second)]
    assert places == [folder / "1" / CASE, folder / "2" / CASE]


def test_another_records_files_are_not_taken(run: Path) -> None:
    other = made_record(started="2026-09-09T00:00:00+00:00")
    assert files.case_folder(other, run) is None
    assert files.artifact_links(other, run, None) == {}


def test_without_a_report_the_records_make_one(run: Path) -> None:
    stored(run, made_record(case="q/late", verdict="fail", started="2026-01-02T04:00:00+00:00"))
    report = files.load_run(run)
    assert [record.case for record in report.cases] == [CASE, "q/late"]
    assert report.verdict == "fail" and report.started == "2026-01-02T03:04:05+00:00"
    assert report.seconds == pytest.approx(86.4)


@pytest.mark.parametrize("given", ["latest", "20260102-030405", "path", "file"])
def test_a_run_is_found(run: Path, given: str) -> None:
    (run.parent / "latest").symlink_to(run.name)
    text = {"path": str(run), "file": str(run / CASE / "record.json")}.get(given, given)
    found = files.find_run(text, run.parent)
    assert found == (run / CASE if given == "file" else run)


@pytest.mark.parametrize("given", ["latest", "20990101-000000", "..", "/nowhere"])
def test_a_run_that_is_none_is_named(
    run: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)  # ".." is looked for below the working folder too
    runs = run.parent if given != ".." else run.parent / "deep"
    (run.parent / "deep/empty").mkdir(parents=True)
    shutil.rmtree(run)
    with pytest.raises(InputError, match="there is no run"):
        files.find_run(given, runs)


@pytest.mark.parametrize("content", ["", "[]", '{"verdict": "good", "cases": []}', "{"])
def test_a_report_that_is_none_is_named(run: Path, content: str) -> None:
    (run / files.REPORT).write_text(content)
    with pytest.raises(InputError, match=r"report\.json is not a report"):
        files.load_run(run)


def test_the_published_schema_is_in_step() -> None:
    assert json.loads(SCHEMA.read_text()) == files.schema(), (
        "testbed report --schema > docs/report.schema.json"
    )


def validate(document: Any) -> None:
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)


def test_reports_fit_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))
    for record in (made_record(), made_record(verdict="error", control=None, checks=())):
        validate(json.loads(files.render(made_report(record), "json", Path())))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(verdict="good"),
        lambda d: d.update(schema="another/v9"),
        lambda d: d["cases"][0].pop("checks"),
        lambda d: d["cases"][0]["checks"][0].update(verdict=1),
        lambda d: d["cases"][0]["environment"].pop("card"),
    ],
)
def test_what_is_no_report_does_not_fit_the_schema(spoil: Any) -> None:
    document = json.loads(files.render(made_report(), "json", Path()))
    spoil(document)
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_a_file_is_never_half_written(tmp_path: Path) -> None:
    files.write_text(tmp_path / "deep/x.html", "é✓")
    assert (tmp_path / "deep/x.html").read_text(encoding="utf-8") == "é✓"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x.html"]


def test_verdicts_of_a_report_follow_its_records() -> None:
    report = files.assembled([made_record(), made_record(verdict="skipped")])
    assert report.verdict == worst(["pass", "skipped"]) == "pass"
    assert files.assembled([]).verdict == "error"
    assert Check(name="x", verdict="pass", pod="a").identity == ("x", "a", "")
