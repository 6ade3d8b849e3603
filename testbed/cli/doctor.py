"""``testbed doctor``: what this machine lacks."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from testbed.cli.options import Json, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes

KINDS = ("process", "kind")


def doctor(
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            help="For which kind of cluster: process, kind. Kind where --cards says nvidia.",
            autocompletion=lambda: list(KINDS),
        ),
    ] = "",
    cards: Annotated[
        str, typer.Option("--cards", help="As for `up`: with nvidia also what real cards need.")
    ] = "",
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Say what this machine lacks, each with the command that helps."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.card.spec import parse_nodes
        from testbed.errors import InputError, known_hint
        from testbed.lab.doctor import BYPASSES, bypasses, diagnose
        from testbed.lab.report.table import columns

        lists = parse_nodes(cards)[1] if cards else ()
        real = any(card.real for each in lists for card in each)
        kind = provider or ("kind" if real else "process")
        if kind not in KINDS:
            raise InputError(
                f"there is no kind of cluster called {kind!r}", hint=known_hint(kind, KINDS)
            )
        if real and kind != "kind":
            raise InputError(
                f"a {kind} cluster's nodes carry emulated cards only",
                hint="testbed doctor --provider kind --cards nvidia",
            )
        findings = diagnose(kind, real_cards=real)
        rows = [("✓" if f.ok else "✗", f.name, f.detail, f.hint) for f in findings]
        text = [
            columns(("", "NEED", "FOUND", "TO FIX"), rows),
            "",
            "Limits keep honest programs apart and are no security boundary. Nothing stops:",
            *(textwrap.fill(f"- {each}", 100, subsequent_indent="  ") for each in BYPASSES),
            f"{bypasses().hint}.",
        ]
        told = [*findings, bypasses()]
        emit(
            [{"ok": f.ok, "name": f.name, "detail": f.detail, "hint": f.hint} for f in told],
            "\n".join(text),
            chosen,
        )
        if not all(f.ok for f in findings):
            raise typer.Exit(2)
