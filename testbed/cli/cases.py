"""``testbed ls``: the cases that there are."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.options import Json, Output, complete_case, format_of, shown
from testbed.cli.output import Format, emit, errors_as_exit_codes


def list_cases(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            help="question/case or a glob; all by default.", autocompletion=complete_case
        ),
    ] = None,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """List the cases that `run` knows: what each asserts, asks for and needs."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.listing import listed
        from testbed.lab.report.table import columns
        from testbed.lab.scenario.cases import find_cases, scenarios_root

        found = [listed(case) for case in find_cases(scenarios_root(), tuple(patterns or ("*",)))]
        lines: list[str] = []
        for question, title in dict.fromkeys((each.question, each.title) for each in found):
            mine = [each for each in found if each.question == question]
            rows = [
                (
                    each.case,
                    each.needs_text,
                    each.pods_text,
                    each.asserts_text,
                    shown(each.path),
                )
                for each in mine
            ]
            lines += ["", title] if lines else [title]
            lines.append(columns(("CASE", "NEEDS", "PODS", "ASSERTS", "PARAMETERS"), rows))
            lines += [f"! {each.case}: {each.problem}" for each in mine if each.problem]
        emit(found, "\n".join(lines), chosen)
        if any(each.problem for each in found):
            raise typer.Exit(2)
