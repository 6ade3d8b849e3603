"""What a cell shows: HTML or a picture in a notebook, text in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.lab.report.table import checks_html, checks_text, columns, matrix, rows_html
from testbed.lab.scenario.record import Check


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


def overview(
    checks: Sequence[Check],
    meanings: Mapping[str, str],
    *,
    asserts_limit: bool,
    control: bool = False,
) -> Table:
    """Return checks as a table of counts, a row a check, a column a pod."""
    header, rows = matrix(checks, meanings, control=control, asserts_limit=asserts_limit)
    # A terminal has no room for sentences.
    narrow = [[cell for place, cell in enumerate(row) if place != 1] for row in (header, *rows)]
    html = rows_html(header, rows, range(2, len(header)))
    return Table(columns(narrow[0], narrow[1:]), html)


def rows_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return rows as a table, their header in capitals in a terminal."""
    return Table(columns([name.upper() for name in header], rows), rows_html(header, rows))
