"""How ``testbed bench`` shows figures: as JSON, and as a table with where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.lab.bench.figures import Environment, Figure

_MARKS = {True: "✓", False: "✗", None: "-"}
_UNITS = {"us": "µs", "pct": "%"}


def medians(figures: Sequence[Figure]) -> dict[str, Any]:
    """Return the medians by key, then under ``figures`` where each comes from."""
    return {
        **{figure.key: figure.value for figure in figures},
        "figures": [
            {
                "key": figure.key,
                "text": figure.text,
                "aim": figure.aim,
                "held": figure.held,
                "spread": figure.spread,
                "reason": figure.reason,
            }
            for figure in figures
        ],
    }


def table(figures: Sequence[Figure], what: str, where: Environment) -> str:
    """Return figures for people.

    Args:
        figures: A row each; the last part of a key is its unit.
        what: What was measured, for the line below the rows.
        where: The machine it was measured on.
    """
    from testbed.lab.report.table import columns

    lines = [
        columns(("", "FIGURE", "MEDIAN", "AIM", "SPREAD"), [_row(figure) for figure in figures]),
        f"{what} on {where.cpu}, {where.cores} cores, load {where.load_before:.1f}",
    ]
    if where.busy:
        lines.append("other processes were busy meanwhile: quiet the machine for true figures")
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    last = figure.key.rpartition("_")[2]
    unit = _UNITS.get(last, last)
    aim = "-" if figure.aim is None else f"{figure.aim:g} {unit}"
    found = figure.spread
    if found is None:
        return (_MARKS[figure.held], figure.text, "-", aim, figure.reason)
    between = f"{found.low:.3g} to {found.high:.3g} of {found.repeats}"
    return (
        _MARKS[figure.held],
        figure.text,
        f"{found.median:.3g} {unit}",
        aim,
        between if found.repeats > 1 else "",
    )
