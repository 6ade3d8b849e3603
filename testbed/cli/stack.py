"""``testbed deploy``, ``render``, ``prepare``: the sharing stack and what it is made of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.evidence import kept
from testbed.cli.options import DEFAULT_NAME, Json, Name, Output, Provider, format_of, resolved
from testbed.cli.output import Format, emit, errors_as_exit_codes

if TYPE_CHECKING:
    from testbed.lab.deploy.chosen import Chosen
    from testbed.lab.testbed import Testbed

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

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="one key of the values otherwise, such as deviceConfig.deviceMemoryScaling=1.5;"
        " may be repeated; null leaves the default; without --values over what is deployed",
    ),
]


def choice(
    values: Path | None, settings: list[str] | None, testbed: Testbed | None = None
) -> Chosen | None:
    """Return what the options choose; None where nothing is said.

    Args:
        values: The file of ``--values``.
        settings: Those of ``--set``.
        testbed: Whose choice is changed where there is no file.

    Raises:
        InputError: they cannot be used.
    """
    from testbed.lab.deploy.chosen import Chosen, changed, load

    if values is None and not settings:
        return None
    if values is not None:
        before = load(values)
    else:
        before = (testbed.chosen() if testbed is not None else None) or Chosen()
    return changed(before, settings or ())


def deploy(
    name: Name = DEFAULT_NAME,
    values: Values = None,
    settings: Settings = None,
    renew_certificates: RenewCertificates = False,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Deploy the sharing stack of this source tree on a testbed that is up."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        from testbed.lab.bundle import default_place
        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed

        testbed, progress = Testbed(name), ConsoleProgress()
        testbed.cluster.kubeconfig()  # said before anything is built
        wanted = choice(values, settings, testbed)
        with testbed.use("deploy", progress), kept(testbed, lambda: default_place(name)):
            info = testbed.deploy(progress, renew_certificates=renew_certificates, values=wanted)
            emit(info, "", chosen)


def render(
    name: Name = DEFAULT_NAME,
    values: Values = None,
    settings: Settings = None,
    output: Output = Format.table,
    as_json: Json = False,
) -> None:
    """Print the manifests that `deploy` applies (new certificates each time)."""
    chosen = format_of(output, as_json)
    with errors_as_exit_codes(chosen):
        import yaml

        from testbed.lab.progress import ConsoleProgress
        from testbed.lab.testbed import Testbed

        testbed = Testbed(name)
        there = testbed if testbed.cluster.status().state == "up" else None
        wanted = choice(values, settings, there)
        manifests = testbed.manifests(ConsoleProgress(), wanted)
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
