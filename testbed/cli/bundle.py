"""``testbed bundle``: the evidence, for a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import DEFAULT_NAME, Json, Name, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes


def bundle(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A new folder, or a file that ends in .tar.gz."),
    ] = None,
    name: Name = DEFAULT_NAME,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Collect logs, events, objects, regions, cards and versions; tokens and keys are cut out.

    The path is the last line.
    """
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.errors import TestbedError
        from testbed.lab import bundle as lab
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed

        testbed = Testbed(name)
        target = (out or lab.default_place(name)).absolute()
        try:
            kube = testbed.kube
        except TestbedError:
            kube = None
        with ConsoleProgress().step(f"collect what there is of testbed {name}"):
            found = lab.write(target, testbed.cluster, kube)
        emit({"bundle": found}, str(found), chosen)
