"""What a notebook's log tells of its failure."""

from __future__ import annotations

import re

from testbed import errors

#: ``package.SomeError: what`` at the end of a traceback; its source lines are indented.
_ERROR = re.compile(r"([A-Za-z_][\w.]*): (.*)")


def last_error(text: str) -> str:
    """Return the last error that a log tells, with the lines that belong to it."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for position in range(len(lines) - 1, -1, -1):
        if match := _ERROR.fullmatch(lines[position]):
            kind, what = match.groups()
            # Our own errors say what, why and hint; others need their class to be understood.
            first = what if hasattr(errors, kind.rpartition(".")[2]) else lines[position]
            return "\n".join([first, *lines[position + 1 :]])
    return lines[-1] if lines else ""
