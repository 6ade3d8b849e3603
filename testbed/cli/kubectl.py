"""``testbed kubectl``: the testbed's own kubectl, on its cluster."""

from __future__ import annotations

import os
import shutil
from typing import Annotated

import typer

from testbed.cli.output import errors_as_exit_codes
from testbed.errors import MissingTool
from testbed.lab import binaries
from testbed.lab.testbed import DEFAULT_NAME, Testbed, checked_name

#: For ``app.command``: whatever follows our own options is kubectl's.
CONTEXT = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def kubectl(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", help="Name of the testbed.")] = DEFAULT_NAME,
) -> None:
    """Run kubectl on the testbed's cluster: testbed kubectl [--name NAME] get pods -A."""
    with errors_as_exit_codes():
        kubeconfig = Testbed(checked_name(name)).cluster.kubeconfig()
        program = binaries.find("kubectl") or shutil.which("kubectl")
        if program is None:
            raise MissingTool("there is no kubectl", hint="testbed prepare")
        environ = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            # It goes with the testbed, where ~/.kube would keep it.
            "KUBECACHEDIR": str(kubeconfig.parent / "kubectl"),
        }
        os.execve(program, ["kubectl", *context.args], environ)
