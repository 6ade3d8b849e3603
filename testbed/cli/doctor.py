"""``testbed doctor``: what this machine lacks."""

from __future__ import annotations

import typer

from testbed.cli.options import Json, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes


def doctor(output: Output = Format.table, as_json: Json = False) -> None:
    """Say what this machine lacks, each with the command that helps."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.doctor import diagnose
        from testbed.lab.report.table import columns

        findings = diagnose()
        rows = [("✓" if f.ok else "✗", f.name, f.detail, f.hint) for f in findings]
        emit(
            [{"ok": f.ok, "name": f.name, "detail": f.detail, "hint": f.hint} for f in findings],
            columns(("", "NEED", "FOUND", "TO FIX"), rows),
            chosen,
        )
        if not all(f.ok for f in findings):
            raise typer.Exit(2)
