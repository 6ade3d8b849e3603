"""``testbed deploy``, ``render``, ``prepare``: the sharing stack and what it is made of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.evidence import kept
from testbed.cli.options import DEFAULT_NAME, Json, Name, Output, Provider, format_of, resolved
from testbed.cli.output import Format, emit, errors_as_exit_codes

RenewCertificates = Annotated[
    bool,
    typer.Option(
        "--renew-certificates", help="make new certificates though the deployed ones still serve"
    ),
]

Values = Annotated[
    Path | None,
    typer.Option(
        "--values",
        metavar="FILE",
        help="what to deploy otherwise than by default (docs/values.md); kept from then on",
    ),
]


def deploy(
    name: Name = DEFAULT_NAME,
    values: Values = None,
    renew_certificates: RenewCertificates = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Deploy the sharing stack of this source tree on a testbed that is up."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bundle import default_place
        from testbed.lab.deploy import chosen as choice
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed, checked_name

        wanted = choice.load(values) if values is not None else None
        testbed, progress = Testbed(checked_name(name)), ConsoleProgress()
        testbed.cluster.kubeconfig()  # said before anything is built
        with testbed.use("deploy", progress), kept(testbed, lambda: default_place(name)):
            info = testbed.deploy(progress, renew_certificates=renew_certificates, values=wanted)
            emit(info, "", chosen)


def render(
    name: Name = DEFAULT_NAME,
    values: Values = None,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Print the manifests that `deploy` applies (new certificates each time)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        import yaml

        from testbed.lab.deploy import chosen as choice
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed, checked_name

        wanted = choice.load(values) if values is not None else None
        manifests = Testbed(checked_name(name)).manifests(ConsoleProgress(), wanted)
        if chosen is Format.json:
            print(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}, indent=2))
        else:
            print(yaml.safe_dump_all(manifests, sort_keys=False), end="")


def prepare(
    provider: Provider = "process", output: Output = Format.table, as_json: Json = False
) -> None:
    """Fetch or build everything that a testbed needs, and start nothing."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.cluster import provider as cluster
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.report.table import columns

        progress = ConsoleProgress()
        # For no testbed in particular.
        name = f"prepare-{os.getpid()}"
        made = cluster(resolved(provider, name), name).prepare(progress)
        rows = [(name, str(path)) for name, path in made.items()]
        emit(
            [{"name": name, "path": path} for name, path in rows],
            columns(("NAME", "PATH"), rows),
            chosen,
        )
