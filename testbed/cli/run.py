"""``testbed run``: cases, one after the other, with one verdict."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.output import Format, errors_as_exit_codes
from testbed.errors import TestbedError
from testbed.lab.notebook import scenarios_root
from testbed.lab.progress import ConsoleProgress
from testbed.lab.report.table import MARKS, record_text, report_text
from testbed.lab.scenario.cases import find_cases
from testbed.lab.scenario.leftovers import tidy
from testbed.lab.scenario.record import EXIT_CODES, Report
from testbed.lab.scenario.run import check_case, run_cases, run_folder
from testbed.lab.testbed import DEFAULT_NAME, Testbed, checked_name, cluster_spec

DEFAULT_CARDS = "a100-80gb:1"


def run(
    patterns: Annotated[
        list[str] | None, typer.Argument(help="question/case, a glob, or a parameter file.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the testbed.")] = DEFAULT_NAME,
    cards: Annotated[
        str, typer.Option("--cards", help=f"Cards of the testbed, {DEFAULT_CARDS} by default.")
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the testbed up afterwards.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=10, help="Seconds for each case.")
    ] = 900.0,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where results go; ./runs by default.")
    ] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="table or json.")] = Format.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Run cases on a testbed, brought up and taken down again unless it is up already.

    Exit status: 0 everything held, 1 a check failed, 2 the infrastructure failed.
    """
    chosen = Format.json if as_json else output
    with errors_as_exit_codes(chosen):
        root = scenarios_root()
        cases = find_cases(root, tuple(patterns or ("*",)))
        notebooks = root.parent / "notebooks"
        for case in cases:
            check_case(case, notebooks / f"{case.question}.ipynb")
        testbed = Testbed(checked_name(name))
        spec = cluster_spec(cards or DEFAULT_CARDS)
        target = (runs or root.parent / "runs").absolute()
        progress = ConsoleProgress()
        evidence: Path | None = None
        with testbed.use("run", progress, wait_s=timeout) as use:
            folder = run_folder(target)
            before = testbed.cluster.status().state
            # One that a killed run would have taken down goes with this run.
            stays = keep or (before != "absent" and not use.inherited)
            use.note(temporary=not stays)
            try:
                if cards and before == "up":
                    testbed.up(spec, progress)  # refuses other cards than it has
                testbed.ensure(spec, progress)
                report = run_cases(
                    cases,
                    notebooks=notebooks,
                    testbed=name,
                    folder=folder,
                    timeout_seconds=timeout,
                    show=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
                    after_error=lambda: tidy(testbed.kube, progress),
                )
                if report.verdict == "error":
                    evidence = testbed.bundle(folder / "bundle")
            except TestbedError as error:
                error.artifacts = error.artifacts or testbed.bundle(folder / "bundle")
                raise
            except KeyboardInterrupt:
                if stays:
                    with contextlib.suppress(TestbedError):  # else the next run does it
                        tidy(testbed.kube, progress)
                raise
            finally:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # nothing came of it
                if not stays:
                    testbed.down(progress)
        show(report, folder, chosen)
        if evidence is not None:
            print(f"bundle    {evidence}", file=sys.stderr)
        raise typer.Exit(EXIT_CODES[report.verdict])


def show(report: Report, folder: Path, output: Format) -> None:
    """Print a report: tables and paths, or the document itself."""
    if output is Format.json:
        print((folder / "report.json").read_text(), end="")
        return
    for record in report.cases:
        print()
        print(record_text(record))
        for label in ("record", "notebook", "plot"):
            path = record.artifacts.get(label)
            if path and Path(path).exists():
                print(f"{label:<9} {path}")
    if len(report.cases) > 1:
        print()
        print(report_text(report))
    print()
    print(f"{MARKS[report.verdict]} {report.verdict}   {folder / 'report.json'}")
