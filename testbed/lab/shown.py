"""What a cell shows: HTML or a picture in a notebook, text in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.lab.report.table import (
    checks_html,
    checks_text,
    columns,
    control_html,
    control_text,
    rows_html,
)
from testbed.lab.scenario.record import Check, Control


class Table:
    """Text in a terminal, a table in a notebook."""

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


class Picture:
    """A PNG that a notebook shows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"plot in {self.path}"

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def checks_table(checks: Sequence[Check]) -> Table:
    """Return checks as a table."""
    return Table(checks_text(checks), checks_html(checks))


def control_table(control: Control, *, asserts_limit: bool) -> Table:
    """Return a control's checks as a table, each with whether it is what must be."""
    return Table(
        control_text(control, asserts_limit=asserts_limit),
        control_html(control, asserts_limit=asserts_limit),
    )


def rows_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return rows as a table, their header in capitals in a terminal."""
    return Table(columns([name.upper() for name in header], rows), rows_html(header, rows))
