"""``testbed run``: cases, one after the other, with one verdict."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import signals
from testbed.cli.evidence import kept
from testbed.cli.options import (
    CARDS_HELP,
    DEFAULT_NAME,
    Json,
    Name,
    Nodes,
    Output,
    Provider,
    complete_cards,
    complete_case,
    format_of,
    resolved,
)
from testbed.cli.output import Format, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.cluster.protocol import ClusterSpec
    from testbed.lab.progress import ConsoleProgress
    from testbed.lab.scenario.cases import Case
    from testbed.lab.scenario.record import Report
    from testbed.lab.testbed import Testbed


def run(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            help="question/case, a glob such as 'co_location/*', a question, or a parameter file; "
            "all cases by default.",
            autocompletion=complete_case,
        ),
    ] = None,
    name: Name = DEFAULT_NAME,
    provider: Provider = "",
    cards: Annotated[
        str | None,
        typer.Option(
            "--cards",
            help=CARDS_HELP + " By default as many a100-80gb as the cases need.",
            autocompletion=complete_cards,
        ),
    ] = None,
    nodes: Nodes = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Run all of them so often; one verdict.")
    ] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the testbed up afterwards.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=10, help="Seconds for each case.")
    ] = 900.0,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where results go; ./runs by default.")
    ] = None,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Run cases on a testbed, brought up and taken down again unless it is up already.

    Exit status: 0 everything held, 1 a check failed, 2 the infrastructure failed.
    """
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.errors import TestbedError
        from testbed.lab.listing import cards_needed
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.scenario.cases import find_cases, scenarios_root
        from testbed.lab.scenario.leftovers import tidy
        from testbed.lab.scenario.record import EXIT_CODES
        from testbed.lab.scenario.run import check_case, command_for, run_cases, run_folder
        from testbed.lab.testbed import Testbed, cluster_spec

        root = scenarios_root()
        cases = find_cases(root, tuple(patterns or ("*",)))
        notebooks = root.parent / "notebooks"
        for case in cases:
            check_case(case, notebooks / f"{case.question}.ipynb")
        testbed = Testbed(name, resolved(provider, name))
        needed = cards_needed(cases)
        # Without a wish: what was there before, else what the cases need.
        usual = f"a100-80gb:{needed}"
        said = cards is not None or nodes is not None
        wish = testbed.wish(cards, nodes, default=usual) if said else None
        default = cluster_spec(usual)
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
                with kept(testbed, lambda: folder / "bundle"):
                    _ready(testbed, before, wish, default, progress, stays=stays)
                    _check_cards(testbed, cases, needed)
                    report = run_cases(
                        cases,
                        notebooks=notebooks,
                        testbed=name,
                        folder=folder,
                        timeout_seconds=timeout,
                        show=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
                        after_error=lambda: tidy(testbed.kube, progress),
                        repeat=repeat,
                        began=_announce(len(cases), repeat),
                        reproduce=command_for(cases, repeat, {"cards": cards, "nodes": nodes}),
                    )
                    if report.verdict == "error":
                        _tell_problems(testbed)
                    if report.verdict in ("error", "fail"):
                        evidence = testbed.bundle(folder / "bundle")
            except KeyboardInterrupt:
                if stays:
                    with contextlib.suppress(TestbedError):  # else the next run does it
                        tidy(testbed.kube, progress)
                raise
            finally:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # nothing came of it
                if not stays:
                    with signals.held():
                        testbed.down(progress)
        show(report, folder, chosen)
        if evidence is not None:
            print(f"bundle    {evidence}", file=sys.stderr)
        raise typer.Exit(EXIT_CODES[report.verdict])


def _ready(
    testbed: Testbed,
    before: str,
    wish: ClusterSpec | None,
    default: ClusterSpec,
    progress: ConsoleProgress,
    *,
    stays: bool,
) -> None:
    """Have the testbed up, with this tree's stack."""
    if wish is not None and before == "up":
        testbed.up(wish, progress)  # refuses other cards than it has
    testbed.ensure(wish or (default if before == "absent" else None), progress)
    status = testbed.cluster.status()
    for note in (*status.notes, *(status.reach if stays else ())):
        print(f"note: {note}", file=sys.stderr, flush=True)


def _tell_problems(testbed: Testbed) -> None:
    """Say what is wrong with the testbed under a case that came to no verdict."""
    for problem in testbed.cluster.status().problems:
        print(f"problem: {problem}", file=sys.stderr, flush=True)


def _check_cards(testbed: Testbed, cases: tuple[Case, ...], needed: int) -> None:
    """Refuse a testbed on which a pod would wait for ever.

    Raises:
        InputError: no node has as many cards as a case needs.
    """
    from testbed.errors import InputError
    from testbed.lab.listing import listed

    most = max((len(node.cards) for node in testbed.cluster.status().nodes), default=0)
    if most and most < needed:
        short = [str(case) for case in cases if listed(case).cards > most]
        raise InputError(
            f"{', '.join(short)} needs {needed} cards on a node",
            why=f"no node of testbed {testbed.name!r} has more than {most}",
            hint=f"use another --name with --cards a100-80gb:{needed}, or other cases",
        )


def _announce(cases: int, repeat: int) -> Callable[[Case, int], None]:
    """Return what names each case before it runs, where there are several."""
    total, count = cases * repeat, 0

    def began(case: Case, number: int) -> None:
        nonlocal count
        count += 1
        if total > 1:
            again = f", round {number} of {repeat}" if repeat > 1 else ""
            print(f"— {case} ({count} of {total}{again})", file=sys.stderr, flush=True)

    return began


def show(report: Report, folder: Path, output: Format) -> None:
    """Print a report: tables and paths, or the document itself."""
    from testbed.lab.report.table import MARKS, record_text, report_text

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
    print(f"{MARKS[report.verdict]} {report.verdict}   {folder / 'report.html'}")
