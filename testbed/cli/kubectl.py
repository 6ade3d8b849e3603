"""``testbed kubectl``: the testbed's own kubectl, on its cluster."""

from __future__ import annotations

import os

import typer

from testbed.cli.options import DEFAULT_NAME, Name
from testbed.cli.output import errors_as_exit_codes

#: For ``app.command``: whatever follows our own options is kubectl's.
CONTEXT = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def kubectl(context: typer.Context, name: Name = DEFAULT_NAME) -> None:
    """Run kubectl on the testbed's cluster: testbed kubectl [--name NAME] get pods -A."""
    with errors_as_exit_codes():
        from testbed.lab.testbed import Testbed

        program, environ = Testbed(name).kubectl()
        os.execve(program, ["kubectl", *context.args], environ)
