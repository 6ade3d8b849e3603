"""``testbed explain``: why a pod waits, or what it gets."""

from __future__ import annotations

from typing import Annotated

import typer

from testbed.cli.options import DEFAULT_NAME, Json, Name, Namespace, Output, format_of
from testbed.cli.output import Format, emit, errors_as_exit_codes


def explain(
    pod: Annotated[str, typer.Argument(metavar="[NAMESPACE/]POD", help="Which pod.")],
    namespace: Namespace = "",
    name: Name = DEFAULT_NAME,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Say with numbers why a pod waits, or what a running one asked, gets and waits for.

    What would make a waiting pod fit was tried on the extender's books before it is said.
    """
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab import explain as lab
        from testbed.lab.testbed import Testbed

        found = lab.explain(lab.gather(Testbed(name).kube, pod, namespace))
        emit(found, lab.text(found), chosen)
