"""``testbed version``."""

from __future__ import annotations

from testbed import __version__
from testbed.cli.options import Json, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes


def version(output: Output = Format.table, as_json: Json = False) -> None:
    """Print the version; with -o json those of all components as well."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        if chosen is Format.table:
            emit(None, __version__, chosen)
            return
        from testbed.lab.versions import versions

        emit(versions(), "", chosen)
