"""``testbed report``: forms again from the records, and what is no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.lab.scenario.record import Check, Verdict, no_verdict, write_json


def stored(runs: Path, verdict: Verdict = "pass") -> Path:
    """Store a run of one case that has a record and no report, as plain papermill may."""
    import msgspec

    record = no_verdict("q/c", "", asserts_limit=False)
    checks = (Check(name="memory_cap", verdict=verdict),)
    record = msgspec.structs.replace(record, verdict=verdict, checks=checks)
    write_json(runs / "20260102-030405/q/c/record.json", record)
    (runs / "latest").symlink_to("20260102-030405")
    return runs / "20260102-030405"


def report(runs: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["report", "--runs", str(runs), *arguments])
    return done.exit_code, done.output


def test_all_forms_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    folder = stored(tmp_path)
    code, text = report(tmp_path)
    assert code == 0 and str(folder / "report.html") in text
    code, text = report(tmp_path, "latest", "--json")
    assert json.loads(text)["verdict"] == "pass"
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "report.json", "report.html", "report.xml", "summary.md"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("form", "ending", "begin"),
    [
        ("html", ".html", "<!doctype html>"),
        ("junit", ".xml", "<?xml"),
        ("markdown", ".md", "## "),
        ("json", ".json", "{"),
    ],
)
def test_one_form_is_printed_or_written(tmp_path: Path, form: str, ending: str, begin: str) -> None:
    stored(tmp_path / "runs")
    code, text = report(tmp_path / "runs", "--format", form)
    assert code == 0 and text.startswith(begin)
    out = tmp_path / f"x{ending}"
    assert report(tmp_path / "runs", "--out", str(out))[0] == 0
    assert out.read_text().startswith(begin)


@pytest.mark.parametrize(("verdict", "code"), [("pass", 0), ("fail", 1), ("error", 2)])
def test_the_verdict_is_the_exit_code_where_asked(
    tmp_path: Path, verdict: Verdict, code: int
) -> None:
    stored(tmp_path, verdict)
    assert report(tmp_path, "--format", "json")[0] == 0
    assert report(tmp_path, "--format", "json", "--exit-code")[0] == code


def test_what_is_no_run_and_no_form_is_named(tmp_path: Path) -> None:
    stored(tmp_path)
    for arguments in (("20990101-000000",), ("--out", "x.pdf")):
        code, _ = report(tmp_path, *arguments)
        assert code == 2


def test_the_schema_is_printed(tmp_path: Path) -> None:
    code, text = report(tmp_path, "--schema")
    assert code == 0 and json.loads(text)["$ref"] == "#/$defs/Report"
