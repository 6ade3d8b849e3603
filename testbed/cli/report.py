"""``testbed report``: the forms of a run's report, again from its records."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format, emit, errors_as_exit_codes
from testbed.errors import InputError
from testbed.lab.report import files
from testbed.lab.report.table import MARKS, report_text
from testbed.lab.scenario.cases import scenarios_root
from testbed.lab.scenario.record import EXIT_CODES


class Form(StrEnum):
    """Values of ``--format``."""

    html = "html"
    junit = "junit"
    markdown = "markdown"
    json = "json"


def report(
    run: Annotated[
        str, typer.Argument(help="A run's name below ./runs, `latest`, or a path.")
    ] = "latest",
    form: Annotated[
        Form | None, typer.Option("--format", help="Print this form alone (see --out).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the form here; its ending tells which.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where runs are; ./runs by default.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of report.json, and end.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with the run's verdict: 0, 1 or 2.")
    ] = False,
    output: Annotated[Format, typer.Option("-o", "--output", help="table or json.")] = Format.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Write a run's report again: one HTML page, JUnit XML, Markdown, JSON.

    Without --format and --out all of them are written into the run's folder.
    Works for a run by plain papermill or an ended one too: what has no verdict
    is an error.
    """
    chosen = Format.json if as_json else output
    with errors_as_exit_codes(chosen):
        if schema:
            print(json.dumps(files.schema(), indent=2))
            return
        form = form or (_form_of(out) if out is not None else None)
        folder = files.find_run(run, (runs or _default_runs()).absolute())
        found = files.load_run(folder)
        if form is None:
            files.write_all(found, folder)
            paths = {name: folder / file for name, file in files.FILES.items()}
            lines = [report_text(found), ""]
            lines += [f"{name:<9} {path}" for name, path in paths.items()]
            lines.append(f"\n{MARKS[found.verdict]} {found.verdict}")
            emit({"verdict": found.verdict, "files": paths}, "\n".join(lines), chosen)
        else:
            # Links are relative to the page, so they are made for where it will lie.
            text = files.render(found, form, folder, base=out.absolute().parent if out else None)
            if out is None:
                print(text, end="")
            else:
                files.write_text(out, text)
                emit({"verdict": found.verdict, "files": {form: out}}, "", chosen)
        if exit_code:
            raise typer.Exit(EXIT_CODES[found.verdict])


def _form_of(out: Path) -> Form:
    endings = {".html": "html", ".xml": "junit", ".md": "markdown", ".json": "json"}
    if out.suffix not in endings:
        raise InputError(
            f"{out} does not tell a form",
            hint="name one with --format, or end the name in " + ", ".join(endings),
        )
    return Form(endings[out.suffix])


def _default_runs() -> Path:
    """Return ``runs`` of the project, or of this folder outside of it."""
    try:
        return scenarios_root().parent / "runs"
    except InputError:
        return Path.cwd() / "runs"
